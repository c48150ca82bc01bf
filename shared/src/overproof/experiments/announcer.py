"""Tells workers that jobs are ready.

A lost announcement costs seconds: workers look by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from overproof.bus.base import Bus
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.topics import Topic
from overproof.core.clock import Clock
from overproof.core.spec import JobSpec
from overproof.errors import BusUnavailable

_log = logging.getLogger(__name__)


def announce(bus: Bus, jobs: Iterable[JobSpec], clock: Clock) -> int:
    """Publish each of `jobs` whole to the topic of its kind; how many were published.

    Never raises for a bus that is down: the jobs are in the database, workers find them there.
    """
    published = 0
    for job in jobs:
        envelope = Envelope.new(
            MessageType.JOB_READY,
            now=clock.now(),
            job_id=job.id,
            kind=job.kind,
            payload={"job": job.model_dump(mode="json")},
        )
        try:
            bus.publish(Topic.jobs(job.kind), envelope)
        except BusUnavailable as error:
            _log.warning("announcement lost, workers will find the job by themselves: %s", error)
            break
        published += 1
    return published
