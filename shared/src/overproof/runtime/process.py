"""Runs jobs in a warm child process that can be killed without harm to anything else."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from pydantic import ValidationError

from overproof.core.failure import FailureReport
from overproof.core.states import StopReason
from overproof.errors import WorkerLost
from overproof.runtime.executor import Execution, Executor
from overproof.runtime.reports import (
    REPORTS,
    Advanced,
    Done,
    Failed,
    JobRequest,
    Report,
    Setup,
    Stop,
)
from overproof.runtime.settings import PREFIX, ChildSettings

_log = logging.getLogger(__name__)
_output_log = logging.getLogger("overproof.child")

_REAP_S = 10.0
_MAX_OUTPUT_LINE = 8_192
# A file or an address where a platform hands out credentials is no secret, and a role needs it.
_SECRET_NAMES = re.compile(
    r"(?!.*_(?:FILE|URI)$).*(?:PASSWORD|SECRET|TOKEN|ACCESS_KEY|CREDENTIAL)", re.IGNORECASE
)
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class ProcessExecutor(Executor):
    """One child that takes job after job, so that libraries are imported once.

    It is replaced after a kill, a stop, a CUDA error, or when it has grown too large. It has its
    own session, so a Ctrl-C in the terminal reaches this process alone, and it ends by itself
    when this process dies.
    """

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._child: _Child | None = None

    def start(self, request: JobRequest) -> Execution:
        """Hand the job to the child."""
        for _ in range(2):
            child = self._child or self._spawn()
            self._child = child
            # A child that died while it was idle is found out here and replaced.
            if child.is_alive() and child.send(request.line()):
                return _ProcessExecution(self, child)
            self.discard(child)
        raise WorkerLost("child processes die at start; see their output in the log")

    def prepare(self) -> None:
        """Start the child, if there is none, so that its imports are done when a job comes."""
        if self._child is None:
            try:
                self._child = self._spawn()
            except WorkerLost as error:
                _log.warning("no child process yet: %s", error)

    def close(self) -> None:
        """End the child, with whatever it runs."""
        if self._child is not None:
            self.discard(self._child)

    def discard(self, child: _Child) -> None:
        """End `child`; the next job gets a new one."""
        child.end()
        if self._child is child:
            self._child = None

    def _spawn(self) -> _Child:
        try:
            child = _Child(child_environment(os.environ, threads=self._settings.threads))
        except OSError as error:
            raise WorkerLost(f"no child process could be started: {error}") from error
        child.send(Setup(settings=self._settings).line())
        return child


class _ProcessExecution(Execution):
    def __init__(self, executor: ProcessExecutor, child: _Child) -> None:
        self._executor = executor
        self._child = child
        self._over = False
        self._stopped = False

    def poll(self, timeout_s: float) -> Report | None:
        if self._over:
            return None
        try:
            report = self._child.receive(timeout_s)
        except WorkerLost as error:
            report = Failed(failure=FailureReport.of(error), reusable=False)
        if isinstance(report, Done | Failed):
            self._over = True
            if self._stopped or not report.reusable:
                self._executor.discard(self._child)
        return report

    def stop(self, reason: StopReason) -> None:
        if not self._over:
            self._stopped = True
            self._child.send(Stop(reason=reason).line())

    def kill(self) -> None:
        if not self._over:
            self._stopped = True
            self._child.kill()


class _Child:
    """A child process with its two private pipes and the thread that forwards its output."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        commands, self._commands = os.pipe()
        self._reports, reports = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "overproof.runtime.child", str(commands), str(reports)],
                pass_fds=(commands, reports),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment),
            )
        except OSError:
            os.close(self._commands)
            os.close(self._reports)
            raise
        finally:
            # Only the child may hold its ends, or nobody would notice the other's death.
            os.close(commands)
            os.close(reports)
        self._buffer = b""
        self._ended = False
        self._poll = select.poll()
        self._poll.register(self._reports, select.POLLIN)
        threading.Thread(target=self._forward_output, daemon=True).start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, line: bytes) -> bool:
        """Whether the child could be told; a dead one is noticed by `receive`."""
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._commands, view) :]
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float) -> Report | None:
        """The next report; None after `timeout_s`.

        Raises:
            WorkerLost: the child is dead, or says something that is no report.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left_s * 1000):
                return None
            data = os.read(self._reports, 1 << 16)
            if not data:
                raise WorkerLost(self._epitaph())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return REPORTS.validate_json(line)
        except ValidationError as error:
            raise WorkerLost(f"the child process sent something unreadable: {error}") from None

    def kill(self) -> None:
        """Kill the child and all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill, reap, free the pipes."""
        if self._ended:
            return
        self._ended = True
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        os.close(self._commands)
        os.close(self._reports)

    def _epitaph(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        code = self._process.returncode
        if code is None:
            return "the child process closed its pipe; see its output in the log"
        if code >= 0:
            return f"the child process ended with exit code {code}; see its output in the log"
        hint = "; it may have run out of memory" if code == -signal.SIGKILL else ""
        return f"the child process was ended by {signal.Signals(-code).name}{hint}"

    def _forward_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while raw := output.readline(_MAX_OUTPUT_LINE):
                line = raw.decode(errors="replace").rstrip()
                # The child's own log begins lines with their level; anything else is a print.
                level, _, rest = line.partition("|")
                known = logging.getLevelNamesMapping().get(level)
                text = rest if known is not None else line
                if text:
                    _output_log.log(known or logging.INFO, "%s", text)


def child_environment(parent: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """The environment of a child: no settings and no secrets, but fixed threads and hashing.

    The number of threads decides the order of sums, so it is fixed for the life of the process.
    """
    kept = {
        name: value
        for name, value in parent.items()
        if not name.startswith(PREFIX) and not _SECRET_NAMES.match(name)
    }
    return {
        **kept,
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # glibc gives large tensors back to the kernel when they are freed, and each new one then
        # pays for every page again: a quarter of a training step on a CPU.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def is_last(report: Report | None) -> bool:
    """Whether nothing follows `report`."""
    return report is not None and not isinstance(report, Advanced)
