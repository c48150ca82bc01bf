from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest

from overproof.runtime.shutdown import StopSignals


class Loop:
    """Signals itself and then runs until it is asked to stop."""

    def __init__(self, number: int, *, obeys: bool = True) -> None:
        self._number = number
        self._obeys = obeys
        self._stop = threading.Event()
        self.stopped = False

    def run(self) -> None:
        deadline = time.monotonic() + 30
        while not (self._stop.is_set() and self._obeys) and time.monotonic() < deadline:
            os.kill(os.getpid(), self._number)
            time.sleep(0.01)
        self.stopped = True

    def request_stop(self) -> None:
        self._stop.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_asks_to_stop(number: int) -> None:
    before = signal.getsignal(number)
    loop = Loop(number)

    with StopSignals() as signals:
        signals.run(loop)

    assert loop.stopped
    assert signal.getsignal(number) is before


def ignore_signals() -> None:
    with StopSignals() as signals:
        signals.run(Loop(signal.SIGTERM, obeys=False))


def test_signal_that_comes_before_the_loop_is_not_lost() -> None:
    loop = Loop(signal.SIGTERM)

    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        # It would send itself a second one, which ends the process, unless it was asked to stop.
        signals.run(loop)

    assert loop.stopped


def test_second_signal_ends_the_process() -> None:
    process = multiprocessing.get_context("forkserver").Process(target=ignore_signals)
    process.start()
    process.join(60)

    assert process.exitcode == 128 + signal.SIGTERM
