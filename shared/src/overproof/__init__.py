"""Overproof proof-tests distilled data sets: distil, train, attack, rank."""

from importlib.metadata import version

__version__ = version("overproof")
