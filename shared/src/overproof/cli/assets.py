"""`overproof data` and `overproof weights`: what users bring, packed once into the store."""

from __future__ import annotations

import typer

data = typer.Typer(no_args_is_help=True, help="Data sets that you bring.")
weights = typer.Typer(no_args_is_help=True, help="Networks that you bring.")
