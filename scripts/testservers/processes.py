"""Server processes: started in the background, recognised later, ended one by one."""

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import places

# Below the kernel's range for outgoing connections, so that the port of a stopped server
# is still free when the server is started again.
PORT_RANGE = range(20_000, 32_000)


class ServerError(Exception):
    """A server cannot be had; the message says which one and what to do."""


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    folder: Path | None = None,
    answer: str = "",
) -> str:
    """Runs a tool to its end and returns its output, both streams.

    Args:
        command: program and arguments.
        what: it is for, in the words of the error.
        environment: added to this process's own.
        user: whom to run as; None is the current user.
        folder: working directory; None is the current one.
        answer: the tool's standard input.

    Raises:
        ServerError: it failed; the message ends with a line of the tool's output.
    """
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        input=answer,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=places.environment(**(environment or {})),
        check=False,
        **_as_user(user),
    )
    if done.returncode:
        reason = _reason(done.stdout)
        raise ServerError(f"{what} failed ({Path(command[0]).name}): {reason}")
    return done.stdout


def _reason(output: str) -> str:
    """What a tool's output says in short: the first line that speaks of an error, or the last."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    lines = [line.strip() for line in plain.splitlines() if line.strip()] or ["no output"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def _as_user(user: str | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@dataclass(frozen=True)
class Process:
    """A process that survives this one; the start time tells it from a later owner of its pid."""

    pid: int
    started_ticks: int


def _started_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    # Of a process with threads, the first may be dead while others still hold its sockets.
    is_over = fields[0] == "Z" and int(fields[17]) <= 1
    return None if is_over else int(fields[19])


def is_alive(process: Process | None) -> bool:
    """Whether this very process still runs."""
    return process is not None and _started_ticks(process.pid) == process.started_ticks


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    folder: Path,
    environment: dict[str, str],
    user: str | None,
) -> Process:
    """Starts a command in a session of its own, with its output in `log`.

    Args:
        command: program and arguments.
        log: appended to.
        folder: working directory.
        environment: the whole environment of the process.
        user: whom to run as; None is the current user.

    Raises:
        ServerError: the process ended at once.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
            **_as_user(user),
        )
    child.returncode = 0  # it is meant to outlive this process: keeps Popen from complaining
    ticks = _started_ticks(child.pid)
    if ticks is None:
        raise ServerError(f"{command[0]} ended at once: see {log}")
    return Process(child.pid, ticks)


def end(process: Process, *, stop_signal: signal.Signals, timeout_s: float = 20) -> None:
    """Asks the process to stop, and kills its session when it does not; no other is touched."""
    if not is_alive(process):
        return
    os.kill(process.pid, stop_signal)
    if not wait_until(lambda: not is_alive(process), timeout_s=timeout_s):
        os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(process), timeout_s=5)


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Polls until the condition holds; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: connections of the previous owner in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_free_ports() -> Iterator[int]:
    """Distinct loopback ports that nobody listens on, one after the other.

    Raises:
        ServerError: all are taken.
    """
    yield from filter(is_free, random.sample(PORT_RANGE, k=len(PORT_RANGE)))
    raise ServerError(f"no free port from {PORT_RANGE.start} to {PORT_RANGE.stop}")


def is_answering_http(url_path: str, port: int, statuses: Sequence[int]) -> bool:
    """Whether a GET without credentials is answered with one of the statuses."""
    request = f"GET {url_path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    answer = exchange(port, request)
    parts = answer.split(b" ", 2)
    return len(parts) > 1 and parts[1].isdigit() and int(parts[1]) in statuses


def exchange(port: int, request: bytes) -> bytes:
    """The first bytes that a loopback server answers; empty when it does not."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(request)
            return connection.recv(4096)
    except OSError:
        return b""
