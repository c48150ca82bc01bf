"""Kills, outages and poison on real processes; the work is counting, so that a lost step shows."""

from __future__ import annotations

import signal
import time

import pytest

from overproof.bus.announcing import announce_ready
from overproof.bus.topics import Topic
from overproof.core.clock import SystemClock
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from tests.e2e.deployment import (
    Deployment,
    counting_unit,
    results_of,
    succeeded,
    total_of,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def running_for(deployment: Deployment, job: JobSpec, step: int) -> bool:
    view = deployment.backends.repository.job(job.job_id)
    return view.progress is not None and view.progress.step >= step


def test_killed_worker_is_replaced_and_no_step_is_lost_or_repeated_in_the_result(
    embedded: Deployment,
) -> None:
    unit = counting_unit(1, steps=60, step_s=0.1)
    submitted = embedded.submit([unit])
    (job,) = submitted.ready
    first = embedded.start("distiller", OVERPROOF_LEASE_TTL_S="3")
    wait_for(lambda: running_for(embedded, job, 15), within_s=90)

    first.send_signal(signal.SIGKILL)
    embedded.start("distiller")
    (ended,) = embedded.wait_finished(submitted.experiment_id, within_s=120)

    result = results_of(embedded, submitted.experiment_id)[unit.id]
    assert ended.state is JobState.SUCCEEDED
    assert ended.attempt == 2
    assert result["total"] == total_of(60, 1)
    assert result["first"] > 0


def test_stopped_worker_hands_its_job_back_without_losing_an_attempt(embedded: Deployment) -> None:
    unit = counting_unit(1, steps=50, step_s=0.1)
    submitted = embedded.submit([unit])
    (job,) = submitted.ready
    first = embedded.start("distiller")
    wait_for(lambda: running_for(embedded, job, 10), within_s=90)

    first.send_signal(signal.SIGTERM)
    assert first.wait(15) == 0
    assert embedded.backends.repository.job(job.job_id).state is JobState.READY
    embedded.start("distiller")
    (ended,) = embedded.wait_finished(submitted.experiment_id)

    assert ended.attempt == 1
    assert results_of(embedded, submitted.experiment_id)[unit.id]["total"] == total_of(50, 1)


def test_job_that_kills_its_process_each_time_fails_and_the_worker_goes_on(
    embedded: Deployment,
) -> None:
    submitted = embedded.submit([counting_unit(1, fate="kill"), counting_unit(2)])
    embedded.start("distiller")

    jobs = embedded.wait_finished(submitted.experiment_id)

    outcome = {job.state: job for job in jobs}
    assert set(outcome) == {JobState.FAILED, JobState.SUCCEEDED}
    assert outcome[JobState.FAILED].attempt == 3
    assert "WorkerLost" in (outcome[JobState.FAILED].error or "")


def test_broken_deploy_stops_its_kind_before_the_queue_is_burnt(embedded: Deployment) -> None:
    submitted = embedded.submit([counting_unit(i, fate="fail") for i in range(10)])
    embedded.start("distiller", OVERPROOF_BREAKER_LIMIT="3")

    def breaker_open() -> bool:
        (status,) = [
            status
            for status in embedded.backends.repository.kind_status()
            if status.kind is JobKind.DISTILL
        ]
        return status.breaker_open

    wait_for(breaker_open, within_s=90)
    time.sleep(2.5)  # two sweeps of the worker

    states = [job.state for job in embedded.jobs(submitted.experiment_id)]
    assert states.count(JobState.FAILED) == 3
    assert states.count(JobState.READY) == 7


def test_cancelled_job_stops_its_child(embedded: Deployment) -> None:
    submitted = embedded.submit([counting_unit(1, steps=600, step_s=0.1)])
    (job,) = submitted.ready
    embedded.start("distiller", OVERPROOF_LEASE_TTL_S="3")
    wait_for(lambda: running_for(embedded, job, 2), within_s=90)

    embedded.backends.repository.cancel_experiment(submitted.experiment_id)
    (ended,) = embedded.wait_finished(submitted.experiment_id, within_s=60)

    assert ended.state is JobState.CANCELLED


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.postgres
def test_eight_workers_and_eight_long_jobs_are_all_busy_within_ten_seconds(
    cluster: Deployment,
) -> None:
    for _ in range(8):
        cluster.start("distiller", OVERPROOF_SWEEP_S="60")
    wait_for(lambda: len(cluster.backends.repository.workers(30)) == 8, within_s=120)
    time.sleep(1)  # listeners are up shortly after the first heartbeat

    submitted = cluster.submit([counting_unit(i, steps=40, step_s=0.5) for i in range(8)])
    announce_ready(cluster.backends.bus, submitted.ready, SystemClock())

    wait_for(
        lambda: {job.state for job in cluster.jobs(submitted.experiment_id)} == {JobState.RUNNING},
        within_s=10,
        otherwise=lambda: cluster.story(submitted.experiment_id),
    )
    owners = {job.owner for job in cluster.jobs(submitted.experiment_id)}
    assert len(owners) == 8
    cluster.backends.repository.cancel_experiment(submitted.experiment_id)


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.postgres
def test_with_every_announcement_lost_everything_finishes_each_job_once(
    cluster: Deployment,
) -> None:
    submitted = cluster.submit([counting_unit(i) for i in range(12)])  # submits, announces nothing
    for _ in range(3):
        cluster.start("distiller")

    jobs = cluster.wait_finished(submitted.experiment_id)

    assert succeeded(jobs)
    assert {job.token for job in jobs} == {1}


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.postgres
def test_messages_that_nobody_can_use_become_dead_letters_and_the_worker_goes_on(
    cluster: Deployment,
) -> None:
    cluster.start("distiller")
    cluster.start("aggregator")
    poison = [b"not JSON", b"null", b'{"schema_version": 99}', b"\xff" * 10]
    for raw in poison:
        cluster.backends.bus.publish_raw(Topic.JOBS_DISTILL, raw)

    wait_for(lambda: len(cluster.backends.repository.dead_letters()) == 4, within_s=90)
    submitted = cluster.submit([counting_unit(1)])

    assert succeeded(cluster.wait_finished(submitted.experiment_id))
    assert {letter.topic for letter in cluster.backends.repository.dead_letters()} == {
        "jobs.distill"
    }
