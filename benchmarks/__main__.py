"""`python -m benchmarks [--only PREFIX]`: measure and write bench/latest.json."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.record import Record

OUTPUT = Path("bench/latest.json")
_NO_MEASUREMENTS = {"__main__", "machine", "naive_distillation", "record", "results"}


def main() -> None:
    """Run every module of this package that has a `PREFIX` matching `--only`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="prefix of the names to measure")
    only = parser.parse_args().only
    console = Console()
    records: list[Record] = []
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.name in _NO_MEASUREMENTS:
            continue
        module = importlib.import_module(f"benchmarks.{info.name}")
        if module.PREFIX.startswith(only) or only.startswith(module.PREFIX):
            console.print(f"[dim]measuring {module.PREFIX}…[/dim]")
            records += [record for record in module.run() if record.name.startswith(only)]
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([record.to_json() for record in records], indent=2) + "\n")
    console.print(_table(records))


def _table(records: list[Record]) -> Table:
    table = Table("name", "value", "reference", "ratio", title=str(OUTPUT))
    for record in records:
        table.add_row(
            record.name,
            f"{record.value:.4g} {record.unit}",
            f"{record.reference}: {record.reference_value:.4g} {record.unit}",
            f"{record.ratio:.2f}×",
        )
    return table


if __name__ == "__main__":
    main()
