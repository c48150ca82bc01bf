"""`python -m overproof` is the command line."""

from overproof.cli import main

main()
