"""The example of a ranking, run as a user runs it; its rows against the accuracies behind them."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from overproof.core.states import JobKind
from overproof.results.views import UnitRow
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranking_small.yaml"
SEEDS = (0, 1, 2)


class Accuracies:
    """Test accuracies by hand: which networks were trained on what, from the stored units."""

    def __init__(self, units: list[UnitRow]) -> None:
        self._sets = {unit.unit_id: unit.body for unit in units if unit.kind is JobKind.DISTILL}
        self._networks = [unit for unit in units if unit.kind is JobKind.TRAIN]

    def of(self, method: str | None, protocol: str, **params: Any) -> list[float]:
        """By seed of the network; `method` None for the whole set."""
        found = {}
        for unit in self._networks:
            training_set = unit.body["training_set"]
            made = None if isinstance(training_set, dict) else self._sets[training_set]
            used = unit.body["protocol"]
            if (
                (made and made["method"]["name"]) == method
                and used["name"] == protocol
                and all(used["params"][name] == value for name, value in params.items())
            ):
                assert made is None or made["seed"] == unit.body["seed"]
                found[unit.body["seed"]] = unit.result["clean_correct"] / unit.result["total"]
        assert sorted(found) == list(SEEDS)
        return [found[seed] for seed in SEEDS]


def scaled(alpha: float) -> float:
    return (math.exp(alpha) - 1 / math.e) / (math.e - 1 / math.e)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OVERPROOF_DEVICE", "cpu")
    return tmp_path / "home"


def test_ranking_of_the_example_is_what_its_accuracies_say(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    call("run", EXAMPLE, "--report", page)
    with Backends.from_settings(Settings(home=home)) as backends:
        (experiment,) = backends.repository.experiments()
        units = backends.repository.units(experiment.experiment_id)
        jobs_before = len(backends.repository.jobs(limit=1_000))

    rows = {row["method"].partition("[")[0]: row for row in read_json("leaderboard", "--ranking")}
    weighted = {
        row["method"].partition("[")[0]: row
        for row in read_json("leaderboard", "--ranking", "--weight=0.9", "--gamma=0.2")
    }

    known = Accuracies(units)
    whole = known.of(None, "ddk")
    random = known.of("random", "dsa", strategy="auto")
    random_plain = known.of("random", "dsa", strategy="none")
    assert set(rows) == {"distribution-matching", "herding"}
    for method, row in rows.items():
        own = known.of(method, "dsa", strategy="auto")
        plain = known.of(method, "dsa", strategy="none")
        hard = known.of(method, "ddk")
        hlr = [w - h for w, h in zip(whole, hard, strict=True)]
        ior = [o - r for o, r in zip(own, random, strict=True)]
        ior_plain = [o - r for o, r in zip(plain, random_plain, strict=True)]
        assert row["hlr"] == pytest.approx(statistics.fmean(hlr))
        assert row["ior"] == pytest.approx(statistics.fmean(ior))
        interval = stats.ttest_1samp(ior, 0).confidence_interval(0.95)
        assert (row["ior_low"], row["ior_high"]) == pytest.approx((interval.low, interval.high))
        assert (row["score_present"], row["score_expected"]) == (12, 12)
        for found, w, g in ((row, 0.5, 0.5), (weighted[method], 0.9, 0.2)):
            alphas = [w * i - (1 - w) * h for i, h in zip(ior, hlr, strict=True)]
            betas = [g * a + (1 - g) * b for a, b in zip(ior, ior_plain, strict=True)]
            assert (found["weight"], found["gamma"]) == (w, g)
            assert found["score"] == pytest.approx(scaled(statistics.fmean(alphas)))
            assert found["augmentation_score"] == pytest.approx(scaled(statistics.fmean(betas)))
            ends = stats.ttest_1samp(alphas, 0).confidence_interval(0.95)
            assert found["score_high"] == pytest.approx(scaled(ends.high))

    # Other weights cost no job, and the rates were searched where the protocol says so.
    with Backends.from_settings(Settings(home=home)) as backends:
        assert len(backends.repository.jobs(limit=1_000)) == jobs_before
    tried = [
        unit.result["tried_rates"]
        for unit in units
        if unit.kind is JobKind.TRAIN
        and unit.body["protocol"]["name"] == "ddk"
        and isinstance(unit.body["training_set"], str)
    ]
    assert len(tried) == 6
    assert all(set(rates) == {"0.005", "0.02", "0.05"} for rates in tried)
    assert "Pareto front" in page.read_text()
    assert "Informativeness against robustness" in page.read_text()
