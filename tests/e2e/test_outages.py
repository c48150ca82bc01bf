"""Servers that stop under running jobs and come back: no job is lost and none is done twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.bus.announcing import announce_ready
from overproof.core.clock import SystemClock
from overproof.core.ids import ExperimentId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.views import JobView
from overproof.runtime.wiring import open_bus
from scripts.testservers import native
from scripts.testservers.own import OwnServer
from tests.e2e.deployment import (
    Deployment,
    counting_unit,
    embedded_deployment,
    results_of,
    succeeded,
    total_of,
    wait_for,
)
from tests.servers import serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_S = 6.0


def wait_until_counting(deployment: Deployment, job: JobSpec, *, step: int = 1) -> JobView:
    """Wait until the job's progress shows `step`; the job as it is then."""

    def view() -> JobView:
        return deployment.backends.repository.job(job.job_id)

    wait_for(
        lambda: (progress := view().progress) is not None and progress.step >= step,
        within_s=90,
        otherwise=lambda: logs_of(deployment),
    )
    return view()


def logs_of(deployment: Deployment) -> str:
    return "\n".join(
        f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
        for log in sorted(deployment.folder.glob("*.log"))
    )


def assert_alive(deployment: Deployment) -> None:
    """No service gave up over the outage."""
    assert [process.poll() for process in deployment.processes] == [None] * len(
        deployment.processes
    )


# ---- Kafka -----------------------------------------------------------------------------------


@pytest.fixture
def kafka() -> Iterator[OwnServer]:
    with serving(native.Kafka()) as server:
        yield server


def announce(deployment: Deployment, jobs: list[JobSpec]) -> int:
    """As who submits does, on a connection of its own; how many were announced."""
    with closing(open_bus(deployment.settings())) as bus:
        return announce_ready(bus, jobs, SystemClock())


@pytest.mark.kafka
def test_without_kafka_jobs_are_found_and_with_it_again_they_are_announced(
    kafka: OwnServer, tmp_path: Path
) -> None:
    with embedded_deployment(tmp_path, bus_url=kafka.url) as deployment:

        def submit(
            first: int, kind: JobKind = JobKind.DISTILL, **over: float
        ) -> tuple[ExperimentId, int]:
            """Three jobs; the second value is how many of them were announced."""
            units = [counting_unit(number, kind, **over) for number in range(first, first + 3)]
            submitted = deployment.submit(units)
            return submitted.experiment_id, announce(deployment, list(submitted.ready))

        deployment.start("aggregator")
        deployment.start("distiller")
        # After its first look it goes by announcements alone.
        deployment.start("trainer", OVERPROOF_SWEEP_S="600")
        idle, _ = submit(0, JobKind.TRAIN)
        ended = deployment.wait_finished(idle)
        running, _ = submit(10, steps=30, step_s=0.1)
        wait_for(lambda: is_any_running(deployment, running), within_s=90)

        kafka.stop()
        unheard, announced_without = submit(20)
        ended += deployment.wait_finished(running) + deployment.wait_finished(unheard)
        kafka.start()
        heard, announced_again = submit(30, JobKind.TRAIN)
        ended += deployment.wait_finished(heard)
        assert_alive(deployment)

    assert (announced_without, announced_again) == (0, 3)
    assert succeeded(ended)
    assert [job.token for job in ended] == [1] * 12


def is_any_running(deployment: Deployment, experiment_id: ExperimentId) -> bool:
    return JobState.RUNNING in {job.state for job in deployment.jobs(experiment_id)}


# ---- Postgres --------------------------------------------------------------------------------


@pytest.fixture
def postgres() -> Iterator[OwnServer]:
    with serving(native.Postgres()) as server:
        engine = create_engine(server.url)
        migrate(engine)
        engine.dispose()
        yield server


def restart_under_the_job(postgres: OwnServer, _: Deployment, __: JobSpec) -> None:
    postgres.stop()
    time.sleep(2)  # several renewals of the lease fail
    postgres.start()


def be_away_when_the_job_ends(postgres: OwnServer, deployment: Deployment, job: JobSpec) -> None:
    postgres.stop()
    wait_for(
        lambda: deployment.backends.store.exists(keys.manifest(job.job_id)),
        within_s=60,
        otherwise=lambda: logs_of(deployment),
    )
    time.sleep(1)  # the worker has tried to say so
    postgres.start()


@pytest.mark.postgres
@pytest.mark.parametrize("outage", [restart_under_the_job, be_away_when_the_job_ends])
def test_job_outlives_an_outage_of_the_database_in_one_attempt(
    postgres: OwnServer,
    tmp_path: Path,
    outage: Callable[[OwnServer, Deployment, JobSpec], None],
) -> None:
    settings = {"database_url": postgres.url, "lease_ttl_s": "60", "renew_s": "0.5"}
    unit = counting_unit(1, steps=80, step_s=0.1)
    with embedded_deployment(tmp_path, **settings) as deployment:
        submitted = deployment.submit([unit])
        (job,) = submitted.ready
        deployment.start("distiller")
        wait_until_counting(deployment, job, step=5)

        outage(postgres, deployment, job)
        (ended,) = deployment.wait_finished(submitted.experiment_id)
        result = results_of(deployment, submitted.experiment_id)[unit.id]
        assert_alive(deployment)

    assert (ended.state, ended.attempt, ended.token) == (JobState.SUCCEEDED, 1, 1)
    assert result == {"total": total_of(80, 1), "first": 0}


# ---- S3 --------------------------------------------------------------------------------------


@pytest.fixture
def s3() -> Iterator[OwnServer]:
    with serving(native.MinIO()) as server:
        yield server


@pytest.mark.s3
def test_job_waits_for_the_store_with_its_result_and_keeps_its_lease(
    s3: OwnServer, tmp_path: Path
) -> None:
    access_key, secret_key = native.s3_credentials()
    settings = {
        "artifacts_url": s3.url,
        "s3_access_key": access_key,
        "s3_secret_key": secret_key,
        "checkpoint_every_s": "300",  # the result is the first thing that it stores
        "lease_ttl_s": str(LEASE_S),
    }
    unit = counting_unit(1, steps=30, step_s=0.1)
    with embedded_deployment(tmp_path, **settings) as deployment:
        submitted = deployment.submit([unit])
        (job,) = submitted.ready
        for _ in range(2):  # the second would take over
            deployment.start("distiller")
        owner = wait_until_counting(deployment, job).owner

        s3.stop()
        wait_for(
            lambda: "artifact store unavailable" in logs_of(deployment),
            within_s=60,
            otherwise=lambda: logs_of(deployment),
        )
        time.sleep(1.5 * LEASE_S)
        waiting = deployment.backends.repository.job(job.job_id)
        s3.start()
        (ended,) = deployment.wait_finished(submitted.experiment_id)
        result = results_of(deployment, submitted.experiment_id)[unit.id]
        assert_alive(deployment)

    assert (waiting.state, waiting.owner) == (JobState.RUNNING, owner)
    assert (ended.state, ended.attempt, ended.token) == (JobState.SUCCEEDED, 1, 1)
    assert result == {"total": total_of(30, 1), "first": 0}
