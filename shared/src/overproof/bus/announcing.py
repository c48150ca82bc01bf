"""Tells others what happened to a job.

None of these raise for a bus that is down: the database has the truth already, workers and the
aggregator find it there. A lost announcement costs seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from overproof.bus.base import Bus
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.topics import Topic
from overproof.core.clock import Clock
from overproof.core.spec import JobSpec
from overproof.errors import BusUnavailable

_log = logging.getLogger(__name__)


def announce_ready(bus: Bus, jobs: Iterable[JobSpec], clock: Clock) -> int:
    """Publish each of `jobs` whole to the topic of its kind; how many were published."""
    published = 0
    for job in jobs:
        envelope = _envelope(
            MessageType.JOB_READY, job, clock, {"job": job.model_dump(mode="json")}
        )
        if not _publish(bus, Topic.jobs(job.kind), envelope):
            break
        published += 1
    return published


def announce_started(bus: Bus, job: JobSpec, clock: Clock, *, token: int, owner: str) -> None:
    """Say that a worker has begun an attempt."""
    envelope = _envelope(MessageType.JOB_STARTED, job, clock, {"token": token, "owner": owner})
    _publish(bus, Topic.EVENTS_JOBS, envelope)


def announce_ended(bus: Bus, job: JobSpec, clock: Clock, *, token: int, outcome: str) -> None:
    """Say how an attempt ended; the transaction that ended it is committed."""
    envelope = _envelope(MessageType.JOB_ENDED, job, clock, {"token": token, "outcome": outcome})
    _publish(bus, Topic.EVENTS_JOBS, envelope)


def _envelope(type: MessageType, job: JobSpec, clock: Clock, payload: dict[str, Any]) -> Envelope:
    return Envelope.new(type, now=clock.now(), job_id=job.id, kind=job.kind, payload=payload)


def _publish(bus: Bus, topic: Topic, envelope: Envelope) -> bool:
    """Whether it was stored. A job too large for a message is announced by its id alone."""
    try:
        try:
            bus.publish(topic, envelope)
        except ValueError:
            bus.publish(topic, envelope.model_copy(update={"payload": {}}))
    except BusUnavailable as error:
        _log.warning("announcement lost, others will find out by themselves: %s", error)
        return False
    return True
