"""Embedded mode: all roles in one process, jobs in children."""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overproof.core.ids import ExperimentId
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.core.states import JobKind, JobState
from overproof.local.runner import LocalRunner
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.worker.tasks import a_probe


def settings_in(home: Path, **over: Any) -> Settings:
    values: dict[str, Any] = {
        "home": home,
        "preload": (),
        "plugins": ("tests.worker.tasks:register",),
        "local_workers": 1,
    }
    return Settings(**values | over)


def submit(backends: Backends, *units: Unit) -> ExperimentId:
    spec = ExperimentSpec.model_validate(
        {"name": "test", "datasets": "digits", "whole_set": True, "networks": "convnet"}
    )
    return backends.repository.create_experiment(
        spec,
        units,
        groups={},
        batch=lambda missing: [JobSpec.of((unit,)) for unit in missing],
    ).experiment_id


def chains(count: int) -> Iterator[Unit]:
    for seed in range(count):
        distill = a_probe(seed=seed)
        yield distill
        yield a_probe(seed=seed, kind=JobKind.TRAIN, needs=[distill])


def states_of(backends: Backends, experiment: ExperimentId) -> dict[JobState, int]:
    return dict(backends.repository.experiment(experiment).jobs)


def test_experiment_runs_to_its_end(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, local_workers=2)
    calls: list[int] = []
    with Backends.from_settings(settings) as backends:
        experiment = submit(backends, *chains(10))

        LocalRunner(settings, backends).run_until_finished(
            experiment, on_progress=lambda: calls.append(1)
        )

        assert states_of(backends, experiment) == {JobState.SUCCEEDED: 20}
        assert calls
        attempts = [
            attempt
            for job in backends.repository.jobs()
            for attempt in backends.repository.attempts(job.job_id)
        ]
        # The bound is loose, so that a busy machine passes; sleeping between steps does not.
        seconds = [(each.ended_at or 0) - each.started_at for each in attempts]
        assert statistics.median(seconds) < 0.5


def test_run_ends_when_all_that_is_left_is_blocked_by_a_failure(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, retry_base_s=0.01)
    bad = a_probe(behaviour="crash")
    child = a_probe(kind=JobKind.TRAIN, needs=[bad])
    good = a_probe(seed=5)
    with Backends.from_settings(settings) as backends:
        experiment = submit(backends, bad, child, good)

        LocalRunner(settings, backends).run_until_finished(experiment)

        assert states_of(backends, experiment) == {
            JobState.FAILED: 1,
            JobState.WAITING: 1,
            JobState.SUCCEEDED: 1,
        }
        job = backends.repository.job(JobSpec.of((bad,)).job_id)
        assert job.attempt == settings.max_attempts
        assert "WorkerLost" in (job.error or "")
        assert [letter.reason for letter in backends.repository.dead_letters()] == ["WorkerLost"]


def test_run_ends_when_the_kind_is_paused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with Backends.from_settings(settings) as backends:
        experiment = submit(backends, a_probe())
        backends.repository.pause(JobKind.DISTILL)

        LocalRunner(settings, backends).run_until_finished(experiment)

        assert states_of(backends, experiment) == {JobState.READY: 1}


def test_nothing_to_do_ends_at_once(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with Backends.from_settings(settings) as backends:
        LocalRunner(settings, backends).run_until_finished()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_hands_running_jobs_back_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    settings = settings_in(tmp_path)
    unit = a_probe(behaviour="slow", steps=10_000)
    threads_before = set(threading.enumerate())
    with Backends.from_settings(settings) as backends:
        experiment = submit(backends, unit)

        def interrupt_when_running() -> None:
            job = backends.repository.job(JobSpec.of((unit,)).job_id)
            if job.progress is not None:
                os.kill(os.getpid(), number)

        with pytest.raises(KeyboardInterrupt):
            LocalRunner(settings, backends).run_until_finished(
                experiment, on_progress=interrupt_when_running
            )

        job = backends.repository.job(JobSpec.of((unit,)).job_id)
        assert (job.state, job.attempt) == (JobState.READY, 0)
        folder = f"jobs/{job.job_id}/checkpoint/"
        assert len(list(backends.store.keys(folder))) == 2
        assert len(set(threading.enumerate()) - threads_before) < 10
