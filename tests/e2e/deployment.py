"""A deployment of its own: real service processes on real back-ends, for one test."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overproof.core.ids import ExperimentId
from overproof.core.spec import ExperimentSpec, Unit
from overproof.core.states import JobKind, JobState
from overproof.experiments.planner import batch
from overproof.experiments.units import make_unit
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.views import JobView, Submitted
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.databases import fresh_postgres
from tests.e2e.plugins import CountingBody

ROOT = Path(__file__).parents[2]
SERVICES = ("distiller", "trainer", "attacker", "aggregator")


@dataclass
class Deployment:
    """Settings as environment variables, the back-ends that they name, and processes started.

    Args:
        folder: for logs and the home folder.
        environment: `OVERPROOF_…` variables of all processes.
    """

    folder: Path
    environment: Mapping[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backends = Backends.from_settings(self.settings())

    def settings(self) -> Settings:
        """The settings that the processes get."""
        variables = {**os.environ, **self.environment}
        fields = {
            name: variables[f"OVERPROOF_{name.upper()}"]
            for name in Settings.model_fields
            if f"OVERPROOF_{name.upper()}" in variables
        }
        return Settings.model_validate(fields)

    def start(self, service: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a service process; its log goes to the test's folder."""
        log = self.folder / f"{service}-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"],
                cwd=ROOT,
                env={**os.environ, **self.environment, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def submit(self, units: Sequence[Unit]) -> Submitted:
        """Submit units that no grid describes; nothing is announced."""
        spec = ExperimentSpec.model_validate(
            {"name": "units", "datasets": "digits", "networks": "convnet", "whole_set": True}
        )
        return self.backends.repository.create_experiment(spec, units, groups={}, batch=batch)

    def jobs(self, experiment_id: ExperimentId) -> list[JobView]:
        """All jobs of the experiment."""
        return self.backends.repository.jobs(experiment_id=experiment_id, limit=1000)

    def wait_finished(self, experiment_id: ExperimentId, *, within_s: float = 120) -> list[JobView]:
        """Wait until every job has ended; the jobs."""
        wait_for(
            lambda: all(job.state.is_terminal for job in self.jobs(experiment_id)),
            within_s=within_s,
            otherwise=lambda: self.story(experiment_id),
        )
        return self.jobs(experiment_id)

    def close(self) -> None:
        """Stop every process that still runs and free the back-ends."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.backends.close()

    def story(self, experiment_id: ExperimentId) -> str:
        """States and logs, for the message of a test that waited in vain."""
        states = [f"{job.job_id} {job.state} {job.error or ''}" for job in self.jobs(experiment_id)]
        logs = [
            f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
            for log in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join([*states, *logs])


@contextmanager
def embedded_deployment(folder: Path, **settings: str) -> Iterator[Deployment]:
    """Processes that share a folder and SQLite: no bus between them, workers look by themselves."""
    home = folder / "home"
    yield from _deployed(folder, {"OVERPROOF_HOME": str(home)} | _variables(settings))


@contextmanager
def cluster_deployment(
    folder: Path, server_url: Callable[[str], str], **settings: str
) -> Iterator[Deployment]:
    """Kafka topics, an S3 bucket and a Postgres database of its own on the real servers."""
    unique = secrets.token_hex(4)
    with fresh_postgres(server_url("POSTGRES")) as database:
        engine = create_engine(database)
        migrate(engine)
        engine.dispose()
        bucket, _, options = server_url("S3").partition("?")
        environment = {
            "OVERPROOF_HOME": str(folder / "home"),
            "OVERPROOF_BUS_URL": f"{server_url('KAFKA')}?prefix={unique}.&partitions=3",
            "OVERPROOF_ARTIFACTS_URL": f"{bucket}-{unique}?{options}",
            "OVERPROOF_DATABASE_URL": database,
        }
        yield from _deployed(folder, environment | _variables(settings))


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    quick: dict[str, str] = {
        "plugins": "tests.e2e.plugins:register",
        "preload": "",
        "device": "cpu",
        "threads": "1",
        "sweep_s": "1",
        "aggregate_s": "0.5",
        "lease_ttl_s": "6",
        "retry_base_s": "0.2",
        "checkpoint_every_s": "0.2",
    }
    return {f"OVERPROOF_{name.upper()}": value for name, value in {**quick, **settings}.items()}


def _deployed(folder: Path, environment: Mapping[str, str]) -> Iterator[Deployment]:
    deployment = Deployment(folder, environment)
    try:
        yield deployment
    finally:
        deployment.close()


def counting_unit(number: int, kind: JobKind = JobKind.DISTILL, **over: Any) -> Unit:
    """A unit of the task that counts."""
    return make_unit(f"counting-{kind.value}", CountingBody(number=number, **over))


def total_of(steps: int, number: int) -> int:
    """What the task that counts must come to."""
    return number * steps * (steps + 1) // 2


def wait_for(
    condition: Callable[[], bool], *, within_s: float, otherwise: Callable[[], str] | str = ""
) -> None:
    """Return once `condition` holds; fail with `otherwise` when it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            story = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"not within {within_s} s\n{story}")
        time.sleep(0.05)


def results_of(deployment: Deployment, experiment_id: ExperimentId) -> dict[str, Any]:
    """Unit id → result without costs, which differ from run to run."""
    return {
        row.unit_id: json.loads(
            json.dumps({key: value for key, value in row.result.items() if key != "cost"})
        )
        for row in deployment.backends.repository.units(experiment_id)
    }


def succeeded(jobs: Sequence[JobView]) -> bool:
    """Whether all of them ended well."""
    return {job.state for job in jobs} == {JobState.SUCCEEDED}
