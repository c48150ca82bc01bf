from __future__ import annotations

from pathlib import Path

import pytest

from overproof.core.ids import ExperimentId
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json
from tests.workers import work_off


def test_leaderboard_shows_percent_with_intervals(
    submitted: ExperimentId, backends: Backends
) -> None:
    work_off(backends.repository)

    table = call("leaderboard").stdout
    [record] = read_json("leaderboard", submitted)

    # seeds 0 and 1: 80 and 81 right; half of the interval is t(0.975, 1) · s / √2 = 12.706 · 0.005
    assert record["clean"] == pytest.approx(0.805)
    assert record["clean_high"] - record["clean"] == pytest.approx(12.7062 * 0.005, abs=1e-5)
    assert record["robust"] == pytest.approx(0.195)
    assert "80.5 ± 6.4" in table
    assert "pgd-linf[steps=20]@8/255:S2" in table


def test_leaderboard_under_another_meaning_of_robust(
    submitted: ExperimentId, backends: Backends
) -> None:
    work_off(backends.repository)

    [record] = read_json("leaderboard", "--semantics", "S1")

    assert record["robust"] == pytest.approx(0.395)


def test_leaderboard_without_results_says_so(submitted: ExperimentId) -> None:
    assert call("leaderboard").stdout == "no results yet\n"


def test_report_is_a_page_with_provenance(
    submitted: ExperimentId, backends: Backends, tmp_path: Path
) -> None:
    work_off(backends.repository)

    call("report", submitted, "--output", tmp_path / "new" / "page.html")

    page = (tmp_path / "new" / "page.html").read_text()
    assert submitted in page
    assert "80.5 ± 6.4" in page
    assert "2.6.0" in page
    for unit in backends.repository.units(submitted):
        assert unit.unit_id in page


def test_report_to_an_impossible_place_is_wrong_use(
    submitted: ExperimentId, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    assert (
        "cannot be written"
        in call("report", "--output", tmp_path / "file" / "page.html", code=2).stderr
    )


def test_dashboard_that_is_not_there_is_wrong_use(home: Path, tmp_path: Path) -> None:
    assert "--app PATH" in call("dashboard", "--app", tmp_path / "app.py", code=2).stderr
