"""All roles in one process: what `overproof run` does when there is no cluster."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from overproof.bus.announcing import announce_ready
from overproof.core.clock import SystemClock
from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind
from overproof.errors import WorkerLost
from overproof.handlers.aggregate import compute_metrics
from overproof.handlers.compare import compute_comparison
from overproof.runtime.aggregation import Aggregator
from overproof.runtime.hooks import Hooks
from overproof.runtime.service import make_executor
from overproof.runtime.settings import Settings, usable_cores
from overproof.runtime.shutdown import Runnable
from overproof.runtime.wiring import Backends
from overproof.runtime.worker import Worker

_log = logging.getLogger(__name__)

# Downstream first, so that whole results appear as early as they can.
_KINDS = (JobKind.ATTACK, JobKind.TRAIN, JobKind.DISTILL)
_AGGREGATE_S = 0.5
_RENEW_S = 1.0
_LOOK_S = 0.5


class LocalRunner:
    """An aggregator and some workers as threads; jobs run in children of this process.

    Each worker takes jobs of every kind, so that its warm child serves them all. The cores are
    divided among the children.

    Args:
        settings: of this process; `local_workers` says how many workers.
        backends: used by all threads, closed by the caller.
    """

    def __init__(self, settings: Settings, backends: Backends) -> None:
        share = max(1, usable_cores() // settings.local_workers)
        self._settings = settings.model_copy(
            update={
                "threads": settings.threads or share,
                "aggregate_s": min(settings.aggregate_s, _AGGREGATE_S),
                # Progress travels with the renewal, and here somebody watches it.
                "renew_s": settings.renew_s or min(_RENEW_S, settings.lease_ttl_s / 3),
            }
        )
        self._backends = backends
        self._clock = SystemClock()

    def run_until_finished(
        self,
        experiment_id: ExperimentId | None = None,
        *,
        on_progress: Callable[[], object] | None = None,
    ) -> None:
        """Work until the experiment has ended, or all of them; then the metrics are up to date.

        Returns early when nothing more can be claimed: a kind is paused, or its breaker is open.

        Args:
            experiment_id: which one; jobs of others are worked on too meanwhile. None for all.
            on_progress: called about twice a second, and once at the end.

        Raises:
            KeyboardInterrupt: after Ctrl-C or SIGTERM, when the running jobs have checkpointed
                and are READY again. After a second one at once: the children end with this
                process, and the leases by themselves.
            WorkerLost: a thread of this process died of an error.
        """
        repository = self._backends.repository
        announce_ready(self._backends.bus, repository.sweep(), self._clock)
        team = _Team(self._settings, self._backends)
        with _sigterm_as_interrupt():
            with team:
                while not self._is_finished(experiment_id):
                    team.wait_for_idle(_LOOK_S)
                    if on_progress is not None:
                        on_progress()
            team.aggregator.catch_up()
            if on_progress is not None:
                on_progress()

    def _is_finished(self, experiment_id: ExperimentId | None) -> bool:
        repository = self._backends.repository
        if experiment_id is not None and repository.experiment(experiment_id).is_finished:
            return True
        return all(
            kind.running == 0 and (kind.ready == 0 or kind.is_held)
            for kind in repository.kind_status()
        )


def _workers_at_once(settings: Settings) -> int:
    # In threads of one process jobs would disturb each other: torch's global state is one.
    return 1 if settings.executor == "inline" else settings.local_workers


class _Team(Hooks):
    """The threads. Entering starts them, leaving stops them."""

    def __init__(self, settings: Settings, backends: Backends) -> None:
        self.aggregator = Aggregator(
            backends, compute_metrics, compute_comparison, settings=settings
        )
        self._workers: Sequence[Worker] = [
            Worker(
                _KINDS, backends, make_executor(settings, backends), settings=settings, hooks=self
            )
            for _ in range(_workers_at_once(settings))
        ]
        self._changed = threading.Event()
        self._errors: list[BaseException] = []
        self._members: Sequence[Runnable] = (*self._workers, self.aggregator)
        self._threads = [
            threading.Thread(target=self._run, args=(member,), daemon=True)
            for member in self._members
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *exception: object) -> None:
        for member in self._members:
            member.request_stop()
        for thread in self._threads:
            thread.join()

    def wait_for_idle(self, timeout_s: float) -> None:
        """Return when no worker has or finds a job, or after `timeout_s`.

        Raises:
            WorkerLost: a thread died of an error.
        """
        deadline = SystemClock().monotonic() + timeout_s
        while (left_s := deadline - SystemClock().monotonic()) > 0:
            self._changed.wait(left_s)
            self._changed.clear()
            if self._errors:
                raise WorkerLost(
                    f"a part of this process failed: {self._errors[0]}; see its log"
                ) from self._errors[0]
            if all(worker.is_idle for worker in self._workers):
                return

    def after_turn(self) -> None:
        """Have the main thread look whether there is anything left to do."""
        self._changed.set()

    def _run(self, member: Runnable) -> None:
        try:
            member.run()
        except Exception as error:
            _log.exception("a part of this process failed")
            self._errors.append(error)
            self._changed.set()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the main thread; nothing changes in another one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
