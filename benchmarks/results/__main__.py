"""`python -m benchmarks.results`: measure the published results again and write docs/results.md.

The product's own commands do the work, in a store of their own; the raw numbers come from what then
stands in the database, and the page from the raw numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.results.numbers import numbers_of
from benchmarks.results.page import page
from benchmarks.results.studies import STUDIES, Study, source_of
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

PAGE = Path("docs/results.md")


def main() -> int:
    """Run the studies and write page and numbers; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", help="store to work in; what is done there is not repeated")
    parser.add_argument("--only", default="", help="prefix of the studies to measure")
    arguments = parser.parse_args()
    chosen = [study for study in STUDIES if study.name.startswith(arguments.only)]
    for study in chosen:
        variable, source = source_of(study.dataset)
        if source is None:
            sys.stderr.write(
                f"set {variable} to {study.dataset}: see `overproof data add --help`\n"
            )
            return 2
    with tempfile.TemporaryDirectory() as temporary:
        for study in chosen:
            measure(study, Path(arguments.home or temporary))
            sys.stdout.write(f"{study.numbers}\n")
    PAGE.write_text(page([study for study in STUDIES if study.numbers.exists()]))
    sys.stdout.write(f"{PAGE}\n")
    return 0


def measure(study: Study, home: Path) -> None:
    """Run the example with its store in `home` and write its numbers."""
    facts = machine()
    _, source = source_of(study.dataset)
    assert source is not None
    _overproof(home, "data", "add", study.dataset, source)
    _overproof(home, "run", str(study.example))
    with Backends.from_settings(Settings(home=home)) as backends:
        repository = backends.repository
        made = numbers_of(repository, repository.experiments(limit=1)[0].experiment_id)
    numbers = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": facts,
        "spec": study.spec.to_json(),
        **made,
    }
    study.numbers.parent.mkdir(parents=True, exist_ok=True)
    study.numbers.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")


def _commit() -> str:
    """The checkout, marked where files of it were changed; "" where there is no git."""
    try:
        return _output("git", "describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _overproof(home: Path, *arguments: str) -> None:
    """`overproof ARGUMENTS` with its store in `home`; it must succeed."""
    command: Sequence[str] = [sys.executable, "-m", "overproof", *arguments]
    subprocess.run(command, env={**os.environ, "OVERPROOF_HOME": str(home)}, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
