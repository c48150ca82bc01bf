from __future__ import annotations

from pathlib import Path

import pytest

from overproof.core.ids import ExperimentId
from overproof.runtime.wiring import Backends
from tests.command_line import SPEC, call, read_json
from tests.workers import work_off


def test_plan_counts_what_is_new_and_changes_nothing(
    home: Path, spec: Path, backends: Backends
) -> None:
    planned = read_json("plan", spec)

    assert [unit["state"] for unit in planned["units"]] == ["new"] * 6
    assert len(planned["jobs"]) == 6
    assert backends.repository.experiments() == []


def test_plan_after_the_work_has_nothing_new(
    submitted: ExperimentId, spec: Path, backends: Backends
) -> None:
    work_off(backends.repository)

    planned = read_json("plan", spec)

    assert {unit["state"] for unit in planned["units"]} == {"done"}
    assert planned["jobs"] == []


def test_faults_of_a_spec_are_all_told(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(SPEC.replace("random", "randon").replace("digits", "digitz"))

    stderr = call("submit", path, code=2).stderr

    assert "did you mean random" in stderr
    assert "digitz" in stderr


def test_submit_warns_when_no_worker_was_seen(home: Path, spec: Path, backends: Backends) -> None:
    backends.repository.heartbeat("somebody", "distill", None)

    result = call("submit", spec)

    assert "no distill worker" not in result.stderr
    assert "no train worker" in result.stderr
    assert "6 new jobs" in result.stdout


def test_submitting_twice_shares_all_jobs(submitted: ExperimentId, spec: Path) -> None:
    again = read_json("submit", spec)

    assert (again["created"], again["linked"]) == (0, 6)
    assert again["experiment_id"] != submitted


@pytest.mark.e2e
def test_run_does_the_work_and_shows_the_leaderboard(
    home: Path, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERPROOF_EXECUTOR", "inline")

    result = call("run", spec, "--report", tmp_path / "page.html")

    assert "6 of 6 jobs ended: 6 succeeded" in result.stdout
    assert "pgd-linf[steps=20]@8/255:S2" in result.stdout
    assert f"report: {tmp_path / 'page.html'}" in result.stdout
    assert "pgd-linf[steps=20]@8/255" in (tmp_path / "page.html").read_text()
    assert len(read_json("run")) == 1  # nothing is left to do


@pytest.mark.e2e
def test_run_of_failing_work_ends_with_1_and_says_why(
    home: Path, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERPROOF_EXECUTOR", "inline")
    # A rate at which the loss overflows in the first epochs.
    spec.write_text(SPEC.replace("epochs: 3", "epochs: 50, learning_rate: 1.0e+30"))

    result = call("run", spec, code=1)

    assert "NonFiniteLoss" in result.stderr
    assert "overproof retry" in result.stderr


def test_run_with_a_paused_kind_ends_with_1_and_says_how_to_resume(home: Path, spec: Path) -> None:
    call("pause", "distill")

    result = call("run", spec, code=1)

    assert "2 distill jobs are held back; `overproof resume distill`" in result.stderr
