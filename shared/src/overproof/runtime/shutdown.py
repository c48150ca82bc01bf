"""Signals: the first asks to stop, the second stops at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Runnable(Protocol):
    """A main loop."""

    def run(self) -> None:
        """Return when it has stopped."""
        ...

    def request_stop(self) -> None:
        """Ask `run` to stop soon; returns at once and may be called from a signal handler."""
        ...


def run_until_signal(runnable: Runnable) -> None:
    """Run until the loop ends by itself or SIGTERM or SIGINT has made it stop.

    A second signal ends the process with code 128 + its number. What it was doing is healed as
    after any crash: the lease ends and another worker takes over.
    """
    with _stopping_on_signals(runnable):
        runnable.run()


@contextmanager
def _stopping_on_signals(runnable: Runnable) -> Iterator[None]:
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        runnable.request_stop()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
