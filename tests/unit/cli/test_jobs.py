from __future__ import annotations

from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind, JobState
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json
from tests.workers import work_off


def test_status_without_id_shows_experiments_and_kinds(submitted: ExperimentId) -> None:
    shown = read_json("status")

    assert [each["experiment_id"] for each in shown["experiments"]] == [submitted]
    assert {each["kind"]: each["ready"] for each in shown["kinds"]} == {
        "distill": 2,
        "train": 0,
        "attack": 0,
    }
    assert "under way" in call("status").stdout


def test_status_of_an_experiment_lists_its_jobs(submitted: ExperimentId) -> None:
    shown = read_json("status", submitted)

    assert len(shown["jobs"]) == 6
    assert {job["state"] for job in shown["jobs"]} == {"READY", "WAITING"}
    assert call("status", submitted).stdout.count("WAITING") == 4


def test_status_of_a_failed_job_shows_why(submitted: ExperimentId, backends: Backends) -> None:
    work_off(backends.repository, failing={JobKind.DISTILL})
    [job, _] = backends.repository.jobs(state=JobState.FAILED)

    text = call("status", job.job_id).stdout

    assert "NonFiniteLoss: the loss is nan" in text
    assert "blocked by" in call("status", submitted).stdout


def test_status_finds_a_job_by_the_id_of_a_unit(
    submitted: ExperimentId, backends: Backends
) -> None:
    unit = backends.repository.units(submitted)[0]

    assert read_json("status", unit.unit_id)["job"]["job_id"] == unit.job_id


def test_watch_ends_with_the_experiment(submitted: ExperimentId, backends: Backends) -> None:
    work_off(backends.repository)

    assert "6 of 6 jobs ended: 6 succeeded" in call("watch").stdout


def test_watch_of_failed_work_ends_with_1(submitted: ExperimentId, backends: Backends) -> None:
    work_off(backends.repository, failing={JobKind.TRAIN})

    result = call("watch", submitted, code=1)

    assert "2 jobs failed" in result.stderr
    assert "2 of them blocked" in result.stdout


def test_cancel_ends_the_jobs_of_an_experiment(submitted: ExperimentId, backends: Backends) -> None:
    call("cancel", submitted)

    assert {job.state for job in backends.repository.jobs()} == {JobState.CANCELLED}


def test_cancel_of_one_job_leaves_the_others(submitted: ExperimentId, backends: Backends) -> None:
    [job, _] = backends.repository.jobs(state=JobState.READY)

    call("cancel", job.job_id)

    assert backends.repository.job(job.job_id).state is JobState.CANCELLED
    assert len(backends.repository.jobs(state=JobState.READY)) == 1


def test_retry_makes_failed_jobs_ready_again(submitted: ExperimentId, backends: Backends) -> None:
    work_off(backends.repository, failing={JobKind.DISTILL})

    assert "2 jobs are ready again" in call("retry", submitted).stdout
    assert len(backends.repository.jobs(state=JobState.READY)) == 2
