"""Each service as a process: it starts, says that it is well, works, and stops when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.core.states import JobState
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.worker.stage import undisturbed_bytes
from tests.worker.tasks import a_probe, register

TIMEOUT_S = 90.0
WORKERS = ("distiller", "trainer", "attacker")


def environment(home: Path, **over: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "OVERPROOF" not in name}
    return {
        **kept,
        "OVERPROOF_HOME": str(home),
        "OVERPROOF_PLUGINS": "tests.worker.tasks:register",
        "OVERPROOF_PRELOAD": "none",
        "OVERPROOF_METRICS_HOST": "127.0.0.1",
        "OVERPROOF_METRICS_PORT": "0",
        "OVERPROOF_HEALTH_FILE": str(home / "health"),
        **over,
    }


class Service:
    """A running service and what it has written so far."""

    def __init__(self, name: str, variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"services.{name}"], env=dict(variables), stderr=file
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def wait_for_log(self, text: str) -> str:
        """The first line that holds `text`."""
        self.wait_for(lambda: text in self.log)
        return next(line for line in self.log.splitlines() if text in line)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


@contextmanager
def running(name: str, tmp_path: Path, **over: str) -> Iterator[Service]:
    service = Service(name, environment(tmp_path / "home", **over), tmp_path / f"{name}.log")
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def get(port: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


@pytest.mark.parametrize("name", [*WORKERS, "aggregator"])
def test_service_is_well_and_stops_on_sigterm(tmp_path: Path, name: str) -> None:
    with running(name, tmp_path) as service:
        port = service.wait_for_log("health and metrics on port").split("port ")[1].split()[0]
        service.wait_for_log(f"{name} started")
        service.wait_for((tmp_path / "home" / "health").exists)
        service.wait_for(lambda: get(port, "/ready")[0] == 200)
        live, metrics, unknown = get(port, "/live"), get(port, "/metrics"), get(port, "/other")

        code = service.stop()

    assert code == 0
    assert live == (200, "yes\n")
    assert f'overproof_loop_age_seconds{{service="{name}"}}' in metrics[1]
    assert unknown[0] == 404
    assert "Traceback" not in service.log


def test_settings_that_cannot_be_used_are_all_listed(tmp_path: Path) -> None:
    with running(
        "distiller", tmp_path, OVERPROOF_LEASE_TTL_S="soon", OVERPROOF_MAX_ATTEMPTS="0"
    ) as service:
        code = service.process.wait(TIMEOUT_S)

    assert code == 2
    assert "OVERPROOF_LEASE_TTL_S" in service.log
    assert "OVERPROOF_MAX_ATTEMPTS" in service.log
    assert "Traceback" not in service.log


def test_idle_worker_ends_by_itself(tmp_path: Path) -> None:
    with running("trainer", tmp_path, OVERPROOF_IDLE_EXIT_S="0.5") as service:
        assert service.process.wait(TIMEOUT_S) == 0


@pytest.mark.slow
def test_sigterm_checkpoints_and_another_worker_gives_the_same_bytes(tmp_path: Path) -> None:
    register()
    unit = a_probe(behaviour="slow", seed=8, steps=400)
    settings = Settings(home=tmp_path / "home", preload=())
    with Backends.from_settings(settings) as backends:
        submit(backends, unit)
        job_id = JobSpec.of((unit,)).job_id
        with running("distiller", tmp_path, OVERPROOF_RENEW_S="0.1") as service:
            service.wait_for(lambda: backends.repository.job(job_id).progress is not None)
            code = service.stop()
        released = backends.repository.job(job_id)
        with running("distiller", tmp_path, OVERPROOF_RENEW_S="0.1") as service:
            service.wait_for(lambda: backends.repository.job(job_id).state.is_terminal)
            service.stop()

        assert code == 0
        assert (released.state, released.attempt) == (JobState.READY, 0)
        assert backends.repository.job(job_id).state is JobState.SUCCEEDED
        assert backends.repository.attempts(job_id)[1].facts["resumed_at"] > 0
        (expected,) = undisturbed_bytes(tmp_path / "undisturbed", [unit])
        files = [key for key in backends.store.keys(f"jobs/{job_id}/") if "numbers" in key]
        assert [backends.store.read(key) for key in files] == [expected]


@pytest.mark.slow
def test_killed_worker_is_replaced_when_its_lease_has_ended(tmp_path: Path) -> None:
    unit = a_probe(behaviour="slow", steps=200)
    settings = Settings(home=tmp_path / "home", preload=())
    quick = {"OVERPROOF_LEASE_TTL_S": "1.5", "OVERPROOF_SWEEP_S": "0.5"}
    with Backends.from_settings(settings) as backends:
        submit(backends, unit)
        job_id = JobSpec.of((unit,)).job_id
        with running("distiller", tmp_path, **quick) as service:
            service.wait_for(lambda: backends.repository.job(job_id).progress is not None)
        with running("distiller", tmp_path, **quick) as service:
            service.wait_for(lambda: backends.repository.job(job_id).state.is_terminal)

        job = backends.repository.job(job_id)
        assert job.state is JobState.SUCCEEDED
        assert job.attempt >= 2


def test_secrets_are_in_no_log(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    with running(
        "distiller",
        tmp_path,
        OVERPROOF_LOG_LEVEL="DEBUG",
        OVERPROOF_KAFKA_PASSWORD=secret,
        AWS_SECRET_ACCESS_KEY=secret,
        OVERPROOF_DATABASE_URL=f"postgresql+psycopg2://someone:{secret}@127.0.0.1:1/none",
    ) as service:
        service.wait_for_log("nothing claimed")
        service.stop()

    assert secret not in service.log


def submit(backends: Backends, *units: Unit) -> None:
    spec = ExperimentSpec.model_validate(
        {"name": "test", "datasets": "digits", "whole_set": True, "networks": "convnet"}
    )
    backends.repository.create_experiment(
        spec,
        units,
        groups={},
        batch=lambda missing: [JobSpec.of((unit,)) for unit in missing],
    )
