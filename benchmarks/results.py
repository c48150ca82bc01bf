"""`python -m benchmarks.results`: measure the published results again and write docs/results.md.

The product's own commands do the work, in a store of their own; the page and the raw numbers beside
it come from what then stands in the database.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from overproof.catalog.metrics import CLEAN_ACCURACY, DROP_RATE, ROBUST_ACCURACY
from overproof.catalog.slices import Slice
from overproof.core.ids import ExperimentId
from overproof.core.semantics import Semantics
from overproof.core.spec import ExperimentSpec
from overproof.core.states import JobKind
from overproof.evaluation.intervals import mean_and_ci
from overproof.report.standings import Standing, standings, to_records
from overproof.report.text import LEGEND, percent
from overproof.results.repository import ResultsRepository
from overproof.results.views import UnitRow
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

VARIABLE = "OVERPROOF_TEST_CIFAR10"
SPEC = Path("examples/cifar10_small.yaml")
PAGE = Path("docs/results.md")
NUMBERS = Path("docs/results/cifar10-small.json")
OURS, BASELINE = "distribution-matching", "random"
SEMANTICS = Semantics.S2


def main() -> int:
    """Run the experiment and write page and numbers; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", help="store to work in; what is done there is not repeated")
    home = parser.parse_args().home
    source = os.environ.get(VARIABLE)
    if not source:
        sys.stderr.write(f"set {VARIABLE} to CIFAR-10: a folder or a tar of train/ and test/\n")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        measure(source, Path(home or temporary))
    sys.stdout.write(f"{PAGE}\n{NUMBERS}\n")
    return 0


def measure(source: str, home: Path) -> None:
    """Run the experiment on the data set at `source` with its store in `home`; write the files."""
    facts = machine()
    _overproof(home, "data", "add", "cifar-10", source)
    _overproof(home, "run", str(SPEC))
    with Backends.from_settings(Settings(home=home)) as backends:
        repository = backends.repository
        experiment_id = repository.experiments(limit=1)[0].experiment_id
        rows = standings(repository.leaderboard(experiment_id), SEMANTICS)
        numbers = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": facts,
            "seconds": _seconds(repository, experiment_id),
            "spec": ExperimentSpec.read(SPEC).to_json(),
            "leaderboard": to_records(rows),
            **_numbers(repository, experiment_id),
        }
    NUMBERS.parent.mkdir(parents=True, exist_ok=True)
    NUMBERS.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")
    PAGE.write_text(page(numbers, rows))


def page(numbers: Mapping[str, Any], rows: Sequence[Standing]) -> str:
    """The Markdown page of the numbers and of the leaderboard's rows."""
    spec, facts = numbers["spec"], numbers["machine"]
    verdict = numbers["differences"][0]
    seeds = ", ".join(map(str, spec["seeds"]))
    machine_words = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "load")
    return "\n".join(
        [
            "# Results",
            "",
            "Written by `make results`; the raw numbers, network by network, are in "
            f"[{NUMBERS.name}]({NUMBERS.relative_to(PAGE.parent)}).",
            "",
            "## Distribution matching against random images on CIFAR-10",
            "",
            f"Networks trained on images made by distribution matching classify "
            f"{_points(verdict)} more of the test images than networks trained on as many random "
            f"training images (paired over {verdict['n']} seeds, 95 % interval).",
            "",
            f"- Command: `{VARIABLE}=PATH make results`, which runs `overproof data add cifar-10 "
            f"PATH` and `overproof run {SPEC}`",
            f"- Data: {rows[0].dataset}, JPEG copies of the images, so accuracies may differ a "
            "little from those on the originals",
            f"- Network and protocol: {rows[0].bench}",
            f"- Seeds: {seeds}; a seed varies the distilled or random images, the network and its "
            "training together",
            f"- Date: {numbers['date']}",
            f"- Machine: {machine_words}",
            f"- Time: {numbers['seconds'] / 60:.0f} minutes from the first job to the last; the "
            f"machine's load was {facts['load']} when this was written",
            "",
            f"{LEGEND} The table shows {SEMANTICS}.",
            "",
            *_table(
                ["method", "attack", "clean %", "robust %", "drop rate %"],
                [
                    [
                        row.method,
                        row.cell or "none",
                        *map(percent, (row.clean, row.robust, row.drop_rate)),
                    ]
                    for row in rows
                ],
            ),
            "",
            f"## {OURS} − {BASELINE}, seed by seed",
            "",
            "In percentage points, with the 95 % interval of Student's t over the differences of "
            "equal seeds. For drop rates below 0 is better.",
            "",
            *_table(
                ["metric", "attack", "difference", "95 % interval"],
                [
                    [
                        row["metric"],
                        row["slice"].rpartition(":")[0] or "none",
                        f"{100 * row['mean']:+.1f}",
                        f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f}",
                    ]
                    for row in numbers["differences"]
                ],
            ),
            "",
        ]
    )


def _numbers(repository: ResultsRepository, experiment_id: ExperimentId) -> dict[str, Any]:
    """The numbers of every network, and what the method gains seed by seed."""
    methods = _methods(repository.units(experiment_id))
    networks = [unit_id for by_seed in methods.values() for unit_id in by_seed.values()]
    metrics = {
        (row.subject, row.metric, row.slice): row.value for row in repository.metrics(networks)
    }
    return {
        "differences": list(_differences(methods, metrics)),
        "networks": [
            {
                "method": method,
                "seed": seed,
                "unit": unit_id,
                "metrics": {
                    f"{metric} {of_slice}".strip(): value
                    for (subject, metric, of_slice), value in metrics.items()
                    if subject == unit_id
                },
            }
            for method, by_seed in methods.items()
            for seed, unit_id in by_seed.items()
        ],
    }


def _methods(units: Sequence[UnitRow]) -> dict[str, dict[int, str]]:
    """Method → seed → network."""
    sets = {
        unit.unit_id: unit.body["method"]["name"] for unit in units if unit.kind is JobKind.DISTILL
    }
    networks: dict[str, dict[int, str]] = {OURS: {}, BASELINE: {}}
    for unit in units:
        if unit.kind is JobKind.TRAIN:
            networks[sets[unit.body["training_set"]]][unit.body["seed"]] = unit.unit_id
    return networks


def _differences(
    methods: Mapping[str, Mapping[int, str]],
    metrics: Mapping[tuple[str, str, str], float | None],
) -> Iterator[dict[str, Any]]:
    """What each metric gains over the baseline, seed by seed; clean accuracy first."""
    wanted = {
        (metric, of_slice)
        for _, metric, of_slice in metrics
        if metric == CLEAN_ACCURACY
        or (metric in {ROBUST_ACCURACY, DROP_RATE} and Slice.parse(of_slice).semantics is SEMANTICS)
    }
    for metric, of_slice in sorted(wanted, key=_order):
        gains = []
        for seed, unit_id in sorted(methods[OURS].items()):
            ours = metrics[unit_id, metric, of_slice]
            baseline = metrics[methods[BASELINE][seed], metric, of_slice]
            if ours is None or baseline is None:
                raise ValueError(f"{metric} {of_slice} of seed {seed} has no value")
            gains.append(ours - baseline)
        yield {"metric": metric, "slice": of_slice, **vars(mean_and_ci(gains)), "gains": gains}


def _order(number: tuple[str, str]) -> tuple[int, str, float]:
    metric, text = number
    if metric == CLEAN_ACCURACY:
        return (0, "", 0.0)
    cell = Slice.parse(text)
    return (1 if metric == ROBUST_ACCURACY else 2, cell.attack, cell.radius)


def _points(difference: Mapping[str, Any]) -> str:
    half = difference["high"] - difference["mean"]
    return f"{100 * difference['mean']:.1f} ± {100 * half:.1f} points"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _seconds(repository: ResultsRepository, experiment_id: ExperimentId) -> float:
    """From the start of the first job to the end of the last."""
    jobs = {unit.job_id for unit in repository.units(experiment_id)}
    attempts = [attempt for job_id in jobs for attempt in repository.attempts(job_id)]
    ends = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
    return max(ends) - min(attempt.started_at for attempt in attempts)


def _overproof(home: Path, *arguments: str) -> None:
    """`overproof ARGUMENTS` with its store in `home`; it must succeed."""
    subprocess.run(
        [Path(sys.executable).parent / "overproof", *arguments],
        env={**os.environ, "OVERPROOF_HOME": str(home)},
        check=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
