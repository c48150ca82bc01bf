"""Signals: the first asks to stop, the second stops at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Runnable(Protocol):
    """A main loop."""

    def run(self) -> None:
        """Return when it has stopped."""
        ...

    def request_stop(self) -> None:
        """Ask `run` to stop soon; returns at once and may be called from a signal handler."""
        ...


class StopSignals:
    """A context in which the first SIGTERM or SIGINT asks a main loop to stop.

    It is entered before there is a loop: process 1 of a container has no signal handlers but its
    own, and a signal that comes while the loop is built would be lost.

    A second signal ends the process with code 128 + its number. What it was doing is healed as
    after any crash: the lease ends and another worker takes over.
    """

    def __init__(self) -> None:
        self._asked = False
        self._runnable: Runnable | None = None
        self._before: dict[signal.Signals, Any] = {}

    def run(self, runnable: Runnable) -> None:
        """Run the loop until it ends by itself or a signal, also an earlier one, made it stop."""
        self._runnable = runnable
        if self._asked:
            runnable.request_stop()
        runnable.run()

    def __enter__(self) -> Self:
        """Handle signals."""
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + number)
        self._asked = True
        if self._runnable is not None:
            self._runnable.request_stop()
