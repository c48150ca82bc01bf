"""Overproof proof-tests distilled data sets: distil, train, attack, rank."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Reading the version takes a third of the time in which `overproof --help` is to answer.
    if name == "__version__":
        from importlib.metadata import version

        return version("overproof")
    if name in ("rank", "RankedSet"):
        import overproof.local.rank as ranking

        return getattr(ranking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
