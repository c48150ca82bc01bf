"""One suite for both executors, then what only a child process can promise."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from overproof.artifacts.directory import DirectoryStore
from overproof.artifacts.manifest import Manifest
from overproof.core.clock import SystemClock
from overproof.core.spec import JobSpec, Unit
from overproof.core.states import StopReason
from overproof.runtime.attempt import AttemptRunner
from overproof.runtime.executor import Execution, Executor, InlineExecutor
from overproof.runtime.process import ProcessExecutor, child_environment
from overproof.runtime.reports import Advanced, Done, Failed, JobRequest, Report, Setup
from overproof.runtime.settings import ChildSettings, Settings
from tests.worker.tasks import a_probe, register

TIMEOUT_S = 60.0


def child_settings(home: Path, **over: Any) -> ChildSettings:
    settings = Settings(
        home=home, preload=(), plugins=("tests.worker.tasks:register",), threads=1, **over
    )
    return settings.for_child()


def a_request(unit: Unit, token: int = 1) -> JobRequest:
    return JobRequest(job=JobSpec.of((unit,)), token=token, attempt=1, inputs={})


def reports_of(execution: Execution) -> Iterator[Report]:
    """All reports up to the last."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        report = execution.poll(1.0)
        if report is not None:
            yield report
            if not isinstance(report, Advanced):
                return
    raise AssertionError("no last report")


def last_report(execution: Execution) -> Done | Failed:
    *_, last = reports_of(execution)
    assert not isinstance(last, Advanced)
    return last


def run(executor: Executor, unit: Unit, token: int = 1) -> Done | Failed:
    return last_report(executor.start(a_request(unit, token)))


def numbers_of(home: Path, unit: Unit) -> bytes:
    store = DirectoryStore(home / "artifacts")
    raw = store.read(f"jobs/{JobSpec.of((unit,)).id}/manifest.json")
    assert raw is not None
    ref = Manifest.decode(raw).units[unit.id].files["numbers"]
    return store.fetch(ref, home / "fetched").read_bytes()


@pytest.fixture(autouse=True)
def _tasks() -> None:
    register()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessExecutor]:
    with closing(ProcessExecutor(child_settings(tmp_path))) as executor:
        yield executor


@pytest.fixture(params=["inline", "process"])
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    settings = child_settings(tmp_path)
    made: Executor
    if request.param == "inline":
        store = DirectoryStore(tmp_path / "artifacts")
        made = InlineExecutor(AttemptRunner(store, settings, clock=SystemClock()))
    else:
        made = ProcessExecutor(settings)
    with closing(made):
        yield made


# ---- both ------------------------------------------------------------------------------------


def test_done_carries_results_and_progress_comes_before(executor: Executor) -> None:
    unit = a_probe(seed=3)

    *before, last = reports_of(executor.start(a_request(unit)))

    assert isinstance(last, Done)
    assert last.results == {unit.id: {"seed": 3, "count": 3}}
    assert last.facts["device"] == "cpu"
    final = before[-1]
    assert isinstance(final, Advanced)
    assert (final.step, final.total, final.scalars["loss"]) == (3, 3, 1 / 3)
    assert final.scalars["steps_per_s"] > 0
    assert final.scalars["seconds_left"] == 0


def test_failure_crosses_as_data(executor: Executor) -> None:
    last = run(executor, a_probe(behaviour="error"))

    assert isinstance(last, Failed)
    assert (last.failure.type_name, last.failure.message) == ("RuntimeError", "no luck today")
    assert last.failure.retryable
    assert "in run" in last.failure.traceback


def test_one_job_after_another(executor: Executor) -> None:
    outcomes = [
        run(executor, a_probe(seed=1)),
        run(executor, a_probe(behaviour="nan")),
        run(executor, a_probe(seed=2)),
    ]

    assert [type(outcome) for outcome in outcomes] == [Done, Failed, Done]


@pytest.mark.parametrize(
    ("reason", "type_name"),
    [(StopReason.CANCEL, "JobCancelled"), (StopReason.SHUTDOWN, "ShuttingDown")],
)
def test_job_stops_at_its_next_report(
    executor: Executor, reason: StopReason, type_name: str
) -> None:
    execution = executor.start(a_request(a_probe(behaviour="slow", steps=3000)))
    while execution.poll(1.0) is None:
        pass

    execution.stop(reason)

    last = last_report(execution)
    assert isinstance(last, Failed)
    assert last.failure.is_stop
    assert last.failure.type_name == type_name


def test_killed_job_is_lost_and_the_next_one_runs(executor: Executor) -> None:
    execution = executor.start(a_request(a_probe(behaviour="slow", steps=3000)))
    while execution.poll(1.0) is None:
        pass

    execution.kill()
    execution.kill()

    last = last_report(execution)
    assert isinstance(last, Failed)
    assert last.failure.type_name == "WorkerLost"
    assert execution.poll(0) is None
    assert isinstance(run(executor, a_probe()), Done)


def test_poll_does_not_wait_longer_than_it_may(executor: Executor) -> None:
    execution = executor.start(a_request(a_probe(behaviour="sleep")))

    began = time.monotonic()
    report = execution.poll(0.05)

    assert report is None
    assert time.monotonic() - began < 5
    execution.kill()


# ---- child processes -------------------------------------------------------------------------


def test_tenth_job_of_a_warm_child_gives_the_bytes_of_a_fresh_one(tmp_path: Path) -> None:
    unit = a_probe(seed=11)
    fresh, warm = tmp_path / "fresh", tmp_path / "warm"
    with closing(ProcessExecutor(child_settings(fresh))) as executor:
        run(executor, unit)

    with closing(ProcessExecutor(child_settings(warm))) as executor:
        for seed in range(9):
            run(executor, a_probe(behaviour="disturb", seed=seed))
        run(executor, unit)

    assert numbers_of(warm, unit) == numbers_of(fresh, unit)


def test_child_stays_for_the_next_job(processes: ProcessExecutor) -> None:
    before = run_and_name_child(processes, a_probe(seed=1))

    assert run_and_name_child(processes, a_probe(seed=2)) == before


@pytest.mark.parametrize("behaviour", ["cuda-error", "out-of-memory"])
def test_child_is_replaced_after_an_error_of_its_device(
    processes: ProcessExecutor, behaviour: str
) -> None:
    before = run_and_name_child(processes, a_probe(seed=1))
    failed = run(processes, a_probe(behaviour=behaviour))

    assert isinstance(failed, Failed)
    assert run_and_name_child(processes, a_probe(seed=2)) != before


def test_child_above_the_memory_limit_is_replaced(tmp_path: Path) -> None:
    settings = child_settings(tmp_path, child_memory_limit_bytes=1)
    with closing(ProcessExecutor(settings)) as executor:
        before = run_and_name_child(executor, a_probe(seed=1))

        assert run_and_name_child(executor, a_probe(seed=2)) != before


def run_and_name_child(executor: ProcessExecutor, unit: Unit) -> int:
    execution = executor.start(a_request(unit))
    (child,) = (each for each in psutil.Process().children() if is_job_child(each))
    assert isinstance(last_report(execution), Done)
    return int(child.pid)


def is_job_child(process: psutil.Process) -> bool:
    try:
        return "overproof.runtime.child" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_child_that_dies_says_how(processes: ProcessExecutor) -> None:
    last = run(processes, a_probe(behaviour="crash"))

    assert isinstance(last, Failed)
    assert last.failure.type_name == "WorkerLost"
    assert last.failure.retryable
    assert "SIGKILL" in last.failure.message
    assert isinstance(run(processes, a_probe()), Done)


def test_child_that_died_while_idle_is_replaced(processes: ProcessExecutor) -> None:
    child = run_and_name_child(processes, a_probe(seed=1))
    os.kill(child, signal.SIGKILL)
    # Until it can be reaped: a zombie may still have threads that end.
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    wait_until(lambda: os.waitid(os.P_PID, child, ended) is not None)

    assert isinstance(run(processes, a_probe(seed=2)), Done)


def test_child_that_cannot_start_is_a_lost_worker_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = child_settings(tmp_path).model_copy(update={"plugins": ("no.such.module:f",)})
    with caplog.at_level(logging.INFO), closing(ProcessExecutor(settings)) as executor:
        last = run(executor, a_probe())
        wait_until(lambda: "no.such.module" in caplog.text)

    assert isinstance(last, Failed)
    assert last.failure.type_name == "WorkerLost"
    assert "exit code 1" in last.failure.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_child_leaves_signals_to_its_parent(
    processes: ProcessExecutor, number: signal.Signals
) -> None:
    execution = processes.start(a_request(a_probe(behaviour="slow", steps=20)))
    while execution.poll(1.0) is None:
        pass
    (child,) = (each for each in psutil.Process().children() if is_job_child(each))

    child.send_signal(number)

    assert isinstance(last_report(execution), Done)


def test_output_of_the_child_goes_to_the_log(
    processes: ProcessExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="overproof.child"):
        run(processes, a_probe(behaviour="noisy"))
        wait_until(lambda: "a word on standard output" in caplog.text)


def test_environment_of_a_child_has_no_settings_and_no_secrets() -> None:
    parent = {
        "OVERPROOF_DATABASE_URL": "postgresql://user:hunter2@host/db",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_ACCESS_KEY_ID": "hunter2",
        "PGPASSWORD": "hunter2",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hunter2",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/role",
        "PATH": "/bin",
        "OMP_NUM_THREADS": "64",
    }

    child = child_environment(parent, threads=2)

    assert "hunter2" not in str(child)
    assert child["PATH"] == "/bin"
    # Where a platform hands out the keys of a role: a child asks for them itself.
    assert child["AWS_WEB_IDENTITY_TOKEN_FILE"] == "/var/run/token"
    assert child["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == "http://127.0.0.1/role"
    assert child["OMP_NUM_THREADS"] == "2"
    assert child["PYTHONHASHSEED"] == "0"


def test_secrets_travel_over_the_pipe_alone(tmp_path: Path) -> None:
    settings = child_settings(tmp_path).model_copy(update={"s3_secret_key": SecretStr("hunter2")})
    setup = Setup(settings=settings)

    assert b"hunter2" in setup.line()
    assert "hunter2" not in repr(setup)
    assert "hunter2" not in setup.model_dump_json()


def test_child_dies_with_its_parent_even_in_the_middle_of_a_job(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    parent = context.Process(target=start_and_wait, args=(tmp_path, theirs))
    parent.start()
    assert ours.poll(TIMEOUT_S)
    child = psutil.Process(ours.recv())

    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()

    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def start_and_wait(home: Path, answer: Connection) -> None:
    """In a process of its own: have a child work, and tell who it is."""
    register()
    executor = ProcessExecutor(child_settings(home))
    execution = executor.start(a_request(a_probe(behaviour="slow", steps=100_000)))
    while execution.poll(1.0) is None:
        pass
    (child,) = (each.pid for each in psutil.Process().children() if is_job_child(each))
    answer.send(child)
    signal.pause()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
