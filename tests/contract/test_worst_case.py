"""The worst case over the attacks of a suite, from the results of workers to the leaderboard."""

from __future__ import annotations

from base64 import b64encode

import pytest

from overproof.bus.memory import MemoryBus
from overproof.core.clock import ManualClock
from overproof.core.ids import ExperimentId
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.report.standings import standings
from overproof.report.text import breakers, cells
from overproof.results.repository import ResultsRepository
from tests.builders import an_experiment, no_added_datasets
from tests.workers import work_off


def outcomes(digits: str) -> dict[str, object]:
    """What a cell stores of 100 samples; `digits` are the first ones, 1 where one is robust."""
    bits = int(digits.ljust(104, "0"), 2).to_bytes(13, "big")
    robust = dict.fromkeys(("robust_s1", "robust_s2", "robust_s3"), digits.count("1"))
    return {"survivors": b64encode(bits).decode(), **robust}


def test_union_of_failures_is_ranked_and_told(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    spec = an_experiment(
        methods=["random"],
        attacks=[{"name": name, "epsilons": ["8/255"]} for name in ("pgd-linf", "cw-linf")],
    )
    planned = plan(spec, no_added_datasets)
    submitted = submit(planned, repository=repository, bus=MemoryBus(), clock=clock)

    work_off(
        repository,
        further={"pgd-linf": outcomes("1" * 20), "cw-linf": outcomes("0" * 10 + "1" * 30)},
    )

    worst, *single = standings(repository.leaderboard(ExperimentId(submitted.experiment_id)))
    # Samples 11 to 20 are in both: fewer than either attack leaves.
    assert worst.cell == "worst-case-linf@8/255"
    assert worst.robust.value == pytest.approx(0.10)
    assert [row.robust.value for row in single] == pytest.approx([0.30, 0.20])
    assert (worst.robust.present, worst.robust.expected) == (2, 2)
    # Of 80 and 81 samples that are right when clean.
    assert worst.drop_rate.value == pytest.approx((70 / 80 + 71 / 81) / 2)
    assert cells(worst)[2] == "worst-case-linf@8/255:S2"
    assert "85.8% by pgd-linf; 71.6% by cw-linf" in breakers([worst])[0]
