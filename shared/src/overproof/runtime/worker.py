"""The worker: finds a job, has it run, ends it, and looks for the next one."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence

from overproof.bus.base import Listener
from overproof.bus.envelope import MessageType
from overproof.bus.topics import Topic
from overproof.core.clock import Clock, SystemClock
from overproof.core.ids import JobId
from overproof.core.states import JobKind, StopReason
from overproof.errors import BusUnavailable, DatabaseUnavailable
from overproof.results.views import Claim
from overproof.runtime.executor import Executor
from overproof.runtime.hooks import Hooks
from overproof.runtime.running import RunningJob
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

_log = logging.getLogger(__name__)

# How long one turn may wait: a request to stop is noticed at the latest after this.
_TURN_S = 0.25


class Worker:
    """Runs one job at a time, of one kind or of several.

    It claims at start, on each announcement, after each job, and every `sweep_s` regardless, since
    an announcement may be lost. `step` is the whole loop body; nothing in it blocks for longer
    than it is allowed to, and calls of back-ends bring their own time limits.

    Args:
        kinds: what it claims; the first kind that has a job wins.
        backends: shared with others of the process.
        executor: its own; closed by `run`.
        settings: times and limits.
        owner: unique name among all workers; made up from host and process when empty.
        clock: for all waiting.
        hooks: called around the steps.
        jitter: spreads the sweeps of many workers over time.
    """

    def __init__(
        self,
        kinds: Sequence[JobKind],
        backends: Backends,
        executor: Executor,
        *,
        settings: Settings,
        owner: str = "",
        clock: Clock | None = None,
        hooks: Hooks | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._kinds = tuple(kinds)
        self._backends = backends
        self._executor = executor
        self._settings = settings
        self._owner = owner or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._clock = clock or SystemClock()
        self._hooks = hooks or Hooks()
        self._jitter = jitter or random.Random()
        self._listener: Listener | None = None
        self._running: RunningJob | None = None
        self._stop = threading.Event()
        now = self._clock.monotonic()
        # Kinds that may have a job for us: those of which the last claim was no failure.
        self._promising: set[JobKind] = set()
        self._sweep_at = now
        self._beat_at = now
        self._idle_since = now

    @property
    def is_idle(self) -> bool:
        """Whether it runs no job and knows of none to claim."""
        return self._running is None and (self._stop.is_set() or not self._promising)

    @property
    def is_finished(self) -> bool:
        """Whether it was asked to stop, or was idle for too long, and has nothing left to do."""
        if self._running is not None:
            return False
        idle_s = self._clock.monotonic() - self._idle_since
        limit_s = self._settings.idle_exit_s
        return self._stop.is_set() or (limit_s is not None and idle_s >= limit_s)

    def request_stop(self) -> None:
        """Claim no more; a running job checkpoints and goes back to READY."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped; then everything of this worker is closed."""
        try:
            while not self.is_finished:
                self.step(_TURN_S)
        finally:
            self._executor.close()
            if self._listener is not None:
                self._listener.close()

    def step(self, wait_s: float = 0.0) -> None:
        """One turn of the loop, waiting up to `wait_s` for something to happen."""
        self._hooks.after_turn()
        self._beat()
        if self._running is None:
            self._look_for_work(wait_s)
            return
        if self._stop.is_set() and not self._running.is_stopping:
            self._running.request_stop(StopReason.SHUTDOWN)
        if self._running.step(wait_s):
            self._running = None
            self._idle_since = self._clock.monotonic()

    # ---- idle --------------------------------------------------------------------------------

    def _look_for_work(self, wait_s: float) -> None:
        if self._stop.is_set():
            return
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._promising = set(self._kinds)
            self._sweep_at = now + self._settings.sweep_s * self._jitter.uniform(0.75, 1.25)
        if not self._promising:
            self._executor.prepare()
        # Before the first claim too: what is announced after it is heard.
        announced = self._listen(0.0 if self._promising else min(wait_s, self._sweep_at - now))
        claim = self._claim(announced)
        if claim is not None:
            self._running = RunningJob(
                claim,
                backends=self._backends,
                executor=self._executor,
                settings=self._settings,
                clock=self._clock,
                hooks=self._hooks,
            )

    def _listen(self, wait_s: float) -> dict[JobKind, JobId]:
        """The last job of each of our kinds that was announced meanwhile."""
        try:
            if self._listener is None:
                topics = [Topic.jobs(kind) for kind in self._kinds]
                self._listener = self._backends.bus.listen(*topics)
            envelopes = self._listener.poll(wait_s)
        except BusUnavailable as error:
            # The sweep finds all work meanwhile, only later.
            _log.warning("no announcements: %s", error)
            self._hooks.after_outage("bus")
            self._stop.wait(wait_s)
            return {}
        announced = {
            envelope.kind: JobId(envelope.job_id)
            for envelope in envelopes
            if envelope.type is MessageType.JOB_READY and envelope.kind in self._kinds
        }
        self._promising |= set(announced)
        return announced

    def _claim(self, announced: Mapping[JobKind, JobId]) -> Claim | None:
        """A job of the first promising kind that has one."""
        for kind in [kind for kind in self._kinds if kind in self._promising]:
            try:
                claim = self._backends.repository.claim(
                    kind,
                    owner=self._owner,
                    ttl_s=self._settings.lease_ttl_s,
                    prefer=announced.get(kind),
                )
            except DatabaseUnavailable as error:
                _log.warning("nothing claimed: %s", error)
                self._hooks.after_outage("database")
                self._promising.clear()
                return None
            self._hooks.after_answer()
            if claim is not None:
                return claim
            self._promising.discard(kind)
        return None

    def _beat(self) -> None:
        """Show the worker in lists; nothing depends on it."""
        now = self._clock.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + self._settings.lease_ttl_s / 3
        try:
            self._backends.repository.heartbeat(
                self._owner,
                ",".join(self._kinds),
                None if self._running is None else self._running.claim.job_id,
            )
        except DatabaseUnavailable:
            self._hooks.after_outage("database")
