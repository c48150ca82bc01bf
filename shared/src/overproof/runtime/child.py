"""The child process: `python -m overproof.runtime.child COMMANDS REPORTS` (two descriptors).

Takes one job after another. It knows the artifact store, not the database nor the bus; the parent
holds the lease and ends the job.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

from overproof.core.clock import SystemClock
from overproof.runtime.attempt import AttemptRunner, clean_slate
from overproof.runtime.plugins import load_plugins
from overproof.runtime.reports import COMMANDS, JobRequest, Report, Setup, Stop
from overproof.runtime.settings import ChildSettings
from overproof.runtime.stopping import StopRequest
from overproof.runtime.stores import open_store
from overproof.runtime.workdir import remove_stale


class Child:
    """Runs jobs on the main thread; a second thread listens to the parent.

    Args:
        commands: lines from the parent; their end means that it is dead.
        reports: lines to the parent.
    """

    def __init__(self, commands: BinaryIO, reports: BinaryIO) -> None:
        self._commands = commands
        self._reports = reports
        self._jobs: queue.SimpleQueue[tuple[JobRequest, StopRequest]] = queue.SimpleQueue()
        self._stop = StopRequest()

    def run(self) -> None:
        """Take jobs for ever; the process ends with its parent."""
        setup = COMMANDS.validate_json(self._commands.readline())
        if not isinstance(setup, Setup):
            raise TypeError(f"the first command is {setup.type}, not setup")
        threading.Thread(target=self._listen, daemon=True, name="parent").start()
        runner = _prepare(setup.settings)
        while True:
            request, stop = self._jobs.get()
            self._send(runner.run(request, stop=stop, report=self._send))

    def _listen(self) -> None:
        while line := self._commands.readline():
            command = COMMANDS.validate_json(line)
            if isinstance(command, JobRequest):
                self._stop = StopRequest()
                self._jobs.put((command, self._stop))
            elif isinstance(command, Stop):
                self._stop.set(command.reason)
        # The parent is dead. A process that nobody leads would compute on for hours, beside the
        # attempt that takes over; its own helpers (data loaders) are in the same group.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _send(self, report: Report) -> None:
        self._reports.write(report.line())
        self._reports.flush()


def _prepare(settings: ChildSettings) -> AttemptRunner:
    load_plugins(settings.plugins)
    for name in settings.preload:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    remove_stale(settings.cache_dir / "work")
    # What is loaded now stays for ever: the collection before each job need not look through it.
    # The first clean slate loads what torch loads late; looking through that took 0.1 s a job.
    clean_slate()
    gc.freeze()
    return AttemptRunner(open_store(settings), settings, clock=SystemClock())


def main(arguments: Sequence[str] = ()) -> None:
    """Run a child on the two descriptors named in `arguments`."""
    commands, reports = (int(argument) for argument in arguments or sys.argv[1:])
    # Both go to the parent, which tells the child what to do; a service manager signals all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s|%(message)s")
    try:
        Child(os.fdopen(commands, "rb"), os.fdopen(reports, "wb")).run()
    except Exception:
        # Not by the usual way out: it would close the pipe at which a thread still waits, and so
        # wait for the parent, which waits for the child.
        logging.exception("the child process cannot go on")
        os._exit(1)


if __name__ == "__main__":
    main()
