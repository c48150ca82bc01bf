"""What the pipeline itself costs: jobs that do nothing, embedded and on Kafka, S3 and Postgres.

Each job still has its claim, its lease, an artifact of a few bytes, a manifest and its end.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.record import Record
from overproof.core.ids import ExperimentId, JobId
from overproof.core.states import JobState, UnitState
from overproof.local.runner import LocalRunner
from overproof.results.repository import ResultsRepository
from tests.e2e.deployment import (
    Deployment,
    cluster_deployment,
    counting_unit,
    embedded_deployment,
    total_of,
)

PREFIX = "overhead"
SERVERS = ("KAFKA", "S3", "POSTGRES")

# The latency of jobs that one worker does one after another: nothing waits for anything else.
JOBS = 200
EMBEDDED_LIMIT_MS, CLUSTER_LIMIT_MS = 50.0, 100.0

MANY_JOBS = 10_000
WORKERS = 4
MANY_LIMIT_S = 600.0

_LOOK_S = 0.5
# As deployed, where the tests are quicker: see `tests.e2e.deployment`.
_DEFAULTS = {"preload": "torch", "lease_ttl_s": "60", "sweep_s": "5", "checkpoint_every_s": "300"}

Work = Callable[[Deployment, ExperimentId, int], None]


def run() -> list[Record]:
    """Embedded, and on the servers if OVERPROOF_TEST_{KAFKA,S3,POSTGRES}_URL name all three."""
    records = []
    with _embedded() as deployment:
        records.append(_latency("embedded", deployment, _work_embedded, EMBEDDED_LIMIT_MS))
    with _embedded() as deployment:
        records.append(_many("embedded", deployment, _work_embedded))
    if all(_variable(server) in os.environ for server in SERVERS):
        with _cluster() as deployment:
            records.append(_latency("cluster", deployment, _work_on_servers, CLUSTER_LIMIT_MS))
        with _cluster() as deployment:
            records.append(_many("cluster", deployment, _work_on_servers))
    return records


def _latency(where: str, deployment: Deployment, work: Work, limit_ms: float) -> Record:
    """Median time from claim to end, by the clock of the database."""
    repository = deployment.backends.repository
    facts = machine()
    experiment_id, seconds = _do(deployment, work, JOBS, workers=1)
    spans_ms = sorted(
        1000 * (attempt.ended_at - attempt.started_at)
        for unit in repository.units(experiment_id)
        for attempt in repository.attempts(JobId(unit.job_id))
        if attempt.ended_at is not None
    )
    return Record(
        f"overhead.{where}",
        statistics.median(spans_ms),
        "ms",
        "limit",
        limit_ms,
        facts={
            **facts,
            "jobs": JOBS,
            "p90_ms": round(statistics.quantiles(spans_ms, n=10)[-1], 1),
            "wall_ms_a_job": round(1000 * seconds / JOBS, 1),
        },
    )


def _many(where: str, deployment: Deployment, work: Work) -> Record:
    """Time of many jobs for several workers; every result must be there exactly once."""
    facts = machine()
    experiment_id, seconds = _do(deployment, work, MANY_JOBS, workers=WORKERS)
    _check_each_once(deployment.backends.repository, experiment_id)
    return Record(
        f"overhead.{where}-10000",
        seconds,
        "s",
        "limit",
        MANY_LIMIT_S,
        facts={
            **facts,
            "jobs": MANY_JOBS,
            "workers": WORKERS,
            "jobs_per_s": round(MANY_JOBS / seconds, 1),
        },
    )


def _do(
    deployment: Deployment, work: Work, jobs: int, *, workers: int
) -> tuple[ExperimentId, float]:
    """Submit jobs and have them done; the seconds from the start of the workers."""
    submitted = deployment.submit([counting_unit(number) for number in range(jobs)])
    began = time.perf_counter()
    work(deployment, submitted.experiment_id, workers)
    return submitted.experiment_id, time.perf_counter() - began


def _work_embedded(deployment: Deployment, experiment_id: ExperimentId, workers: int) -> None:
    settings = deployment.settings().model_copy(update={"local_workers": workers})
    LocalRunner(settings, deployment.backends).run_until_finished(experiment_id)


def _work_on_servers(deployment: Deployment, experiment_id: ExperimentId, workers: int) -> None:
    for _ in range(workers):
        deployment.start("distiller")
    while not deployment.backends.repository.experiment(experiment_id).is_finished:
        time.sleep(_LOOK_S)


def _check_each_once(repository: ResultsRepository, experiment_id: ExperimentId) -> None:
    """Every job was claimed once and has its own result.

    Raises:
        AssertionError: a result is absent, wrong, or was made more than once.
    """
    units = repository.units(experiment_id)
    results = sorted((unit.body["number"], unit.result["total"]) for unit in units)
    assert results == [(number, total_of(1, number)) for number in range(MANY_JOBS)]
    assert {unit.state for unit in units} == {UnitState.DONE}
    assert {unit.token for unit in units} == {1}
    jobs = repository.experiment(experiment_id).jobs
    assert {state: count for state, count in jobs.items() if count} == {
        JobState.SUCCEEDED: MANY_JOBS
    }


@contextmanager
def _embedded() -> Iterator[Deployment]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        embedded_deployment(Path(folder), **_DEFAULTS) as deployment,
    ):
        yield deployment


@contextmanager
def _cluster() -> Iterator[Deployment]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        cluster_deployment(
            Path(folder), lambda server: os.environ[_variable(server)], **_DEFAULTS
        ) as deployment,
    ):
        yield deployment


def _variable(server: str) -> str:
    return f"OVERPROOF_TEST_{server}_URL"
