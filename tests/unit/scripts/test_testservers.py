import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.testservers import cli, compose, installing, native, places, processes
from scripts.testservers.processes import Process, ServerError


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder and a cache of the test's own; no server is given."""
    monkeypatch.setattr(places, "DATA", tmp_path)
    monkeypatch.setattr(places, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(places, "OPEN_DATA", tmp_path / "open")
    monkeypatch.setenv("OVERPROOF_CACHE", str(tmp_path / "cache"))
    for server in native.SERVERS:
        monkeypatch.delenv(server.variable, raising=False)
    return tmp_path


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = processes.spawn(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        log=tmp_path / "log",
        folder=tmp_path,
        environment=dict(os.environ),
        user=None,
    )
    yield process
    processes.end(process, stop_signal=signal.SIGKILL)


@pytest.fixture
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_started_process_ends_on_request(sleeper: Process) -> None:
    assert processes.is_alive(sleeper)

    processes.end(sleeper, stop_signal=signal.SIGTERM)

    assert not processes.is_alive(sleeper)


def test_a_later_owner_of_the_pid_is_left_alone(sleeper: Process) -> None:
    predecessor = Process(sleeper.pid, sleeper.started_ticks - 1)

    processes.end(predecessor, stop_signal=signal.SIGKILL)

    assert not processes.is_alive(predecessor)
    assert processes.is_alive(sleeper)


def test_a_process_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)"
    process = processes.spawn(
        [sys.executable, "-c", f"{code}; time.sleep(60)"],
        log=tmp_path / "log",
        folder=tmp_path,
        environment=dict(os.environ),
        user=None,
    )
    assert processes.wait_until(lambda: (tmp_path / "log").read_text() == "on\n", timeout_s=20)

    processes.end(process, stop_signal=signal.SIGTERM, timeout_s=0.2)

    assert not processes.is_alive(process)


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert not processes.is_free(port)

    assert processes.is_free(port)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("first\nthe reason\n\n", "the reason"),
        ("\x1b[31mERROR\x1b[0m: no such package\nsee the manual", "ERROR: no such package"),
        ("", "no output"),
    ],
)
def test_a_failed_tool_is_reported_with_its_reason(output: str, reason: str) -> None:
    command = [sys.executable, "-c", f"import sys; print({output!r}); sys.exit(1)"]

    with pytest.raises(ServerError) as caught:
        processes.run(command, what="fetching")

    assert str(caught.value) == f"fetching failed ({Path(sys.executable).name}): {reason}"


def test_a_cached_folder_is_built_once(checkout: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "program").touch(exist_ok=False)
        builds.append(folder)

    builds: list[Path] = []
    first = installing.ensure_cached("thing-1", build)
    second = installing.ensure_cached("thing-1", build)

    assert first == second
    assert (first / "program").exists()
    assert len(builds) == 1


def test_a_failed_build_leaves_nothing_behind(checkout: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ServerError("no network")

    with pytest.raises(ServerError):
        installing.ensure_cached("thing-1", fail)

    assert [entry.name for entry in places.cache().iterdir()] == ["thing-1.lock"]


def test_a_given_server_is_used_as_it_is(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERPROOF_TEST_KAFKA_URL", "kafka://kafka.test:9092")

    assert cli.is_given(native.Kafka())
    assert cli.variables() == {"OVERPROOF_TEST_KAFKA_URL": "kafka://kafka.test:9092"}


def test_the_url_of_an_own_server_left_in_the_environment_does_not_count_as_given(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = native.Kafka()
    cli.save(kafka, cli.Record("native", {"main": 20_123, "controller": 20_124}))
    monkeypatch.setenv(kafka.variable, kafka.url(20_123))

    assert not cli.is_given(kafka)


def test_a_record_survives_its_file(checkout: Path) -> None:
    record = cli.Record("native", {"main": 20_123}, Process(pid=77, started_ticks=1234))

    cli.save(native.Postgres(), record)

    assert cli.load(native.Postgres()) == record


def test_down_stops_the_server_deletes_its_data_and_keeps_its_port(
    checkout: Path, sleeper: Process
) -> None:
    postgres = native.Postgres()
    cli.save(postgres, cli.Record("native", {"main": 20_123}, sleeper))
    cli.folder_of(postgres).mkdir(parents=True)

    cli.down([postgres])

    assert not processes.is_alive(sleeper)
    assert not cli.folder_of(postgres).exists()
    assert cli.load(postgres) == cli.Record("native", {"main": 20_123})


def test_stop_and_start_are_refused_for_a_server_that_was_never_started_here(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["restart", "kafka"]) == 1

    assert capsys.readouterr().err == (
        "servers: kafka was not started here: run scripts/servers up\n"
    )


@pytest.mark.usefixtures("signals_restored")
def test_a_missing_server_stops_the_run_in_ci_only(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: native.Server, folder: Path, ports: native.Ports) -> native.Launch:
        raise ServerError("missing")

    for server in (native.Kafka, native.MinIO, native.SeaweedFS, native.Postgres):
        monkeypatch.setattr(server, "prepare", fail)
    monkeypatch.setattr(compose, "is_available", lambda: False)
    command = [sys.executable, "-c", "raise SystemExit(7)"]

    monkeypatch.setenv("CI", "true")
    in_ci = cli.main(["run", *command])
    monkeypatch.delenv("CI")
    elsewhere = cli.main(["run", *command])

    assert (in_ci, elsewhere) == (1, 7)


def test_the_script_says_what_it_can_do() -> None:
    done = subprocess.run(
        [places.ROOT / "scripts/servers", "--help"], capture_output=True, text=True, check=True
    )

    assert "restart NAME" in done.stdout
