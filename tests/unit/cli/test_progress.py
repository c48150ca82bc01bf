from __future__ import annotations

import pytest

from overproof.cli.progress import show_progress
from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind
from overproof.results.views import Progress
from overproof.runtime.wiring import Backends
from tests.workers import work_off


def run_one(backends: Backends) -> None:
    """Claim a job, and report that 3 of 10 steps are done."""
    claim = backends.repository.claim(JobKind.DISTILL, owner="me", ttl_s=60)
    assert claim is not None
    backends.repository.renew(claim, Progress(3, 10, {"loss": 0.25}))


def test_file_gets_a_line_for_each_change_and_no_line_twice(
    submitted: ExperimentId, backends: Backends
) -> None:
    lines: list[str] = []
    with show_progress(backends.repository, submitted, lines.append) as update:
        assert not update()
        assert not update()
        work_off(backends.repository)
        assert update()

    assert lines == [
        "0 of 6 jobs ended: 4 waiting, 2 ready",
        "6 of 6 jobs ended: 6 succeeded",
    ]


def test_whoever_watches_is_told_that_jobs_are_held_back_and_how_to_go_on(
    submitted: ExperimentId, backends: Backends
) -> None:
    lines: list[str] = []
    backends.repository.pause(JobKind.ATTACK)
    with show_progress(backends.repository, submitted, lines.append) as update:
        assert not update()
        backends.repository.pause(JobKind.DISTILL)
        assert not update()

    assert lines == [
        "0 of 6 jobs ended: 4 waiting, 2 ready",  # no attack is ready yet
        "0 of 6 jobs ended: 4 waiting, 2 ready; distill jobs are held back, "
        "`overproof resume distill`",
    ]


def test_terminal_gets_a_bar_for_all_and_one_for_each_running_job(
    submitted: ExperimentId,
    backends: Backends,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    lines: list[str] = []

    with show_progress(backends.repository, submitted, lines.append) as update:
        update()
        run_one(backends)
        update()

    shown = capsys.readouterr().err
    assert lines == []
    assert "0 of 6" in shown
    assert "loss 0.25" in shown
    assert "3 of 10" in shown
