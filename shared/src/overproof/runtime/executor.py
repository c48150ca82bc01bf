"""Where jobs run: the contract, and the executor that runs them in a thread of this process.

The executor for production is `runtime.process.ProcessExecutor`.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod

from overproof.core.failure import FailureReport
from overproof.core.states import StopReason
from overproof.errors import WorkerLost
from overproof.runtime.attempt import AttemptRunner
from overproof.runtime.reports import Advanced, Done, Failed, JobRequest, Report
from overproof.runtime.stopping import StopRequest


class Execution(ABC):
    """One running attempt. Used by one thread."""

    @abstractmethod
    def poll(self, timeout_s: float) -> Report | None:
        """The next report, waiting up to `timeout_s` for it; None when there is none yet.

        The last report is `Done` or `Failed`, exactly one of them, whatever happens: a process
        that dies gives `Failed` with `WorkerLost`. Nothing follows it.
        """

    @abstractmethod
    def stop(self, reason: StopReason) -> None:
        """Ask the job to stop at its next cooperative point; returns at once."""

    @abstractmethod
    def kill(self) -> None:
        """End the job now, without its consent; the last report follows. Twice is harmless."""


class Executor(ABC):
    """Runs one attempt at a time. Used by one thread."""

    @abstractmethod
    def start(self, request: JobRequest) -> Execution:
        """Begin an attempt. The one before has given its last report.

        Raises:
            WorkerLost: no process could be started for it.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Make ready for a job that may come soon; never raises."""

    @abstractmethod
    def close(self) -> None:
        """End whatever still runs. Calling it twice is harmless."""


class InlineExecutor(Executor):
    """Runs attempts in a thread, in step with `poll`: a job pauses after each of its reports.

    For tests and for debugging. A killed job ends at its next report, since a thread cannot be
    ended from outside.
    """

    def __init__(self, runner: AttemptRunner) -> None:
        self._runner = runner

    def start(self, request: JobRequest) -> Execution:
        """Nothing runs before the first `poll`."""
        return _InlineExecution(self._runner, request)

    def prepare(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: a thread that waits for a poll ends with the process."""


class _Killed(BaseException):
    """Ends the thread of a killed job; no handler catches it by `except Exception`."""


class _InlineExecution(Execution):
    def __init__(self, runner: AttemptRunner, request: JobRequest) -> None:
        self._runner = runner
        self._request = request
        self._stop = StopRequest()
        self._killed = False
        self._over = False
        self._paused = True
        self._turn = threading.Semaphore(0)
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name=request.job.id)
        self._thread.start()

    def poll(self, timeout_s: float) -> Report | None:
        if self._over:
            return None
        if self._paused:
            self._paused = False
            self._turn.release()
        try:
            report = self._reports.get(timeout=timeout_s) if timeout_s > 0 else self._next_now()
        except queue.Empty:
            return None
        self._paused = True
        self._over = not isinstance(report, Advanced)
        return report

    def stop(self, reason: StopReason) -> None:
        self._stop.set(reason)

    def kill(self) -> None:
        self._killed = True
        self._stop.set(StopReason.LOST)

    def _next_now(self) -> Report:
        return self._reports.get_nowait()

    def _run(self) -> None:
        try:
            self._turn.acquire()
            last: Done | Failed = self._runner.run(
                self._request, stop=self._stop, report=self._report
            )
        except _Killed:
            last = Failed(failure=FailureReport.of(WorkerLost("the job was killed")))
        self._reports.put(last)

    def _report(self, report: Advanced) -> None:
        if not self._killed:
            self._reports.put(report)
            self._turn.acquire()
        if self._killed:
            raise _Killed
