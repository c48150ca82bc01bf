"""The aggregator's loop: numbers of finished units, dead letters, and the sweep that heals."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from overproof.artifacts import keys
from overproof.bus.announcing import announce_ready
from overproof.bus.base import Delivery, Subscription
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.topics import Group, Topic
from overproof.core.clock import Clock, SystemClock
from overproof.core.ids import GroupId, JobId, is_job_id
from overproof.core.states import JobState
from overproof.errors import BusUnavailable, DatabaseUnavailable, NotFound, StoreUnavailable
from overproof.results.views import Comparison, EndKind, GroupUnits, MetricRow, UnitRow
from overproof.runtime.hooks import Hooks
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

_log = logging.getLogger(__name__)

Compute = Callable[[Mapping[str, Any], Sequence[UnitRow]], Sequence[MetricRow]]
Compare = Callable[[Comparison, Mapping[GroupId, GroupUnits]], Sequence[MetricRow]]
IdT = TypeVar("IdT", bound=str)

_TOPICS = (Topic.EVENTS_JOBS, Topic.JOBS_DISTILL, Topic.JOBS_TRAIN, Topic.JOBS_ATTACK)
_TURN_S = 0.25
_BATCH = 50
_OUTAGE_PAUSE_S = 1.0
# What cannot be computed is tried again this late; others are not held up.
_FAILED_PAUSE_S = 300.0


class Aggregator:
    """Keeps the numbers up to date, whatever messages are lost or come twice.

    Everything it does follows from the state of the database, so each step may be repeated; a
    message only makes it look at once. Messages are committed after their effect: those that
    nobody can use become dead letters. Several aggregators may run.

    Args:
        backends: shared with others of the process.
        compute: metrics of a group from its body and units; pure.
        compare: metrics of a comparison from its groups; pure. None leaves them to others.
        settings: how often to look.
        clock: for all waiting.
        hooks: called around the steps.
    """

    def __init__(
        self,
        backends: Backends,
        compute: Compute,
        compare: Compare | None = None,
        *,
        settings: Settings,
        clock: Clock | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._backends = backends
        self._compute = compute
        self._compare = compare
        self._settings = settings
        self._clock = clock or SystemClock()
        self._hooks = hooks or Hooks()
        self._stop = threading.Event()
        self._subscription: Subscription | None = None
        self._unhandled: list[Delivery] = []
        self._failed: dict[str, float] = {}
        self._sweep_at = self._clock.monotonic()

    def request_stop(self) -> None:
        """End `run` after the step that is under way."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._stop.is_set():
                self.step(_TURN_S)
        finally:
            if self._subscription is not None:
                self._subscription.close()

    def step(self, wait_s: float = 0.0) -> None:
        """One turn of the loop, waiting up to `wait_s` for messages."""
        self._hooks.after_turn()
        # Messages that could not be dealt with come first: a commit would cover them too.
        deliveries = self._unhandled or self._poll(wait_s)
        self._unhandled = deliveries
        is_due = self._clock.monotonic() >= self._sweep_at
        try:
            for delivery in deliveries:
                self._handle(delivery)
            if is_due:
                self._sweep()
            if is_due or any(_is_end(delivery) for delivery in deliveries):
                self._aggregate()
        except (DatabaseUnavailable, StoreUnavailable) as error:
            _log.warning("nothing aggregated: %s", error)
            self._hooks.after_outage(
                "database" if isinstance(error, DatabaseUnavailable) else "store"
            )
            self._clock.sleep(min(wait_s, _OUTAGE_PAUSE_S))
            return
        self._hooks.after_answer()
        self._unhandled = []
        self._commit()

    def catch_up(self) -> None:
        """Heal and compute all that can be, now; for a process that is about to end."""
        self._sweep()
        self._aggregate()

    # ---- messages ----------------------------------------------------------------------------

    def _poll(self, wait_s: float) -> list[Delivery]:
        try:
            if self._subscription is None:
                self._subscription = self._backends.bus.subscribe(*_TOPICS, group=Group.AGGREGATOR)
            return self._subscription.poll(wait_s)
        except BusUnavailable as error:
            self._lose_bus(error)
            self._stop.wait(wait_s)
            return []

    def _commit(self) -> None:
        if self._subscription is not None:
            try:
                self._subscription.commit()
            except BusUnavailable as error:
                # They come again, and then there is nothing left to do for them.
                self._lose_bus(error)

    def _lose_bus(self, error: BusUnavailable) -> None:
        _log.warning("no messages, the sweep goes on: %s", error)
        self._hooks.after_outage("bus")

    def _handle(self, delivery: Delivery) -> None:
        if delivery.fault is not None:
            self._bury(delivery.topic, delivery.raw, reason="malformed", report=str(delivery.fault))
            return
        envelope = delivery.envelope
        assert envelope is not None
        try:
            if not is_job_id(envelope.job_id):
                raise NotFound(f"{envelope.job_id!r} is no id of a job")
            job = self._backends.repository.job(JobId(envelope.job_id))
        except NotFound as error:
            self._bury(
                delivery.topic,
                delivery.raw,
                reason="unknown-job",
                report=str(error),
                job_id=envelope.job_id or None,
            )
            return
        if _is_end(delivery) and job.state is JobState.FAILED:
            self._bury_failed([job.job_id])

    def _bury(
        self, topic: Topic, raw: bytes, *, reason: str, report: str, job_id: str | None = None
    ) -> None:
        """Keep a message that nobody can use: bytes in the store, a row, and word on the bus."""
        sha256 = hashlib.sha256(raw).hexdigest()
        self._backends.store.put_once(keys.dead_letter(sha256), raw)
        self._backends.repository.add_dead_letter(
            topic=topic.value,
            reason=reason,
            report=report,
            sha256=sha256,
            size_bytes=len(raw),
            job_id=job_id,
        )
        _log.warning("dead letter on %s: %s", topic.value, reason, extra={"job_id": job_id or ""})
        self._hooks.after_dead_letter(topic.value, reason)
        try:
            self._backends.bus.publish_raw(topic.dead, raw, key=job_id or "")
        except (BusUnavailable, ValueError) as error:
            _log.warning("dead letter kept, not published: %s", error)

    def _bury_failed(self, job_ids: Iterable[JobId]) -> None:
        """A dead letter for each job that has FAILED for good: the message that announces it.

        It is the same for the same failure, so that it counts once however often it is written.
        """
        for job_id in job_ids:
            job = self._backends.repository.job(job_id)
            if job.state is not JobState.FAILED:
                continue
            attempts = self._backends.repository.attempts(job_id)
            failure = attempts[-1].failure if attempts else None
            envelope = Envelope(
                message_id=f"{job_id}-{job.token}",
                type=MessageType.JOB_READY,
                job_id=job_id,
                kind=job.kind,
                occurred_at=datetime.fromtimestamp(job.created_at, UTC),
            )
            self._bury(
                Topic.jobs(job.kind),
                envelope.encode(),
                reason=failure.type_name if failure else EndKind.FAILED.value,
                report=failure.model_dump_json(indent=1) if failure else job.error or "",
                job_id=job_id,
            )
            self._backends.repository.mark_buried(job_id, job.token)

    # ---- database ----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Heal what crashed processes left: lost workers, locked children, silent announcements."""
        repository = self._backends.repository
        repository.expire_lost()
        # Also those of workers that died before they could say that their job has failed.
        self._bury_failed(repository.unburied(_BATCH))
        announce_ready(self._backends.bus, repository.sweep(), self._clock)
        self._hooks.after_survey(repository.kind_status())
        self._sweep_at = self._clock.monotonic() + self._settings.aggregate_s

    def _aggregate(self) -> None:
        """Bring all groups with news up to date, then the comparisons of groups."""
        repository = self._backends.repository
        now = self._clock.monotonic()
        self._failed = {each: until for each, until in self._failed.items() if until > now}
        self._bring_up_to_date(
            repository.groups_to_aggregate,
            lambda group: repository.recompute(group, self._compute),
        )
        if (compare := self._compare) is not None:
            self._bring_up_to_date(
                repository.comparisons_to_aggregate,
                lambda comparison: repository.recompute_comparison(comparison, compare),
            )

    def _bring_up_to_date(
        self, to_do: Callable[[int], Sequence[IdT]], recompute: Callable[[IdT], object]
    ) -> None:
        while True:
            # What failed stays in the list, so it is asked for more than that.
            found = to_do(_BATCH + len(self._failed))
            waiting = [each for each in found if each not in self._failed]
            if not waiting:
                return
            for each in waiting:
                self._recompute(each, recompute)

    def _recompute(self, subject: IdT, recompute: Callable[[IdT], object]) -> None:
        self._hooks.after_turn()  # many groups take long, but the loop is well
        began = self._clock.monotonic()
        try:
            recompute(subject)
        except (DatabaseUnavailable, StoreUnavailable):
            raise
        except Exception:
            _log.exception("metrics of %s cannot be computed", subject)
            self._failed[subject] = began + _FAILED_PAUSE_S
            return
        self._hooks.after_recompute(self._clock.monotonic() - began)


def _is_end(delivery: Delivery) -> bool:
    return delivery.envelope is not None and delivery.envelope.type is MessageType.JOB_ENDED
