from __future__ import annotations

import pytest

from overproof.bus.announcing import announce_ended, announce_ready, announce_started
from overproof.bus.envelope import MessageType
from overproof.bus.memory import MemoryBus
from overproof.bus.topics import Topic
from overproof.core.clock import ManualClock
from overproof.core.spec import JobSpec
from tests.builders import a_cell, a_network

CLOCK = ManualClock()
NETWORK = a_network()


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


def test_ready_job_travels_whole_to_the_topic_of_its_kind(bus: MemoryBus) -> None:
    jobs = [JobSpec.of((NETWORK,)), JobSpec.of((a_cell(NETWORK),))]
    train, attack = bus.listen(Topic.JOBS_TRAIN), bus.listen(Topic.JOBS_ATTACK)

    published = announce_ready(bus, jobs, CLOCK)

    assert published == 2
    for listener, job in ((train, jobs[0]), (attack, jobs[1])):
        (envelope,) = listener.poll(0)
        assert (envelope.type, envelope.job_id) == (MessageType.JOB_READY, job.id)
        assert JobSpec.model_validate(envelope.payload["job"]) == job


def test_job_too_large_for_a_message_is_announced_by_its_id(bus: MemoryBus) -> None:
    job = JobSpec.of(tuple(a_network(seed=seed) for seed in range(300)))
    listener = bus.listen(Topic.JOBS_TRAIN)

    assert announce_ready(bus, [job], CLOCK) == 1

    (envelope,) = listener.poll(0)
    assert (envelope.job_id, envelope.payload) == (job.id, {})


def test_start_and_end_are_events(bus: MemoryBus) -> None:
    job = JobSpec.of((NETWORK,))
    listener = bus.listen(Topic.EVENTS_JOBS)

    announce_started(bus, job, CLOCK, token=3, owner="me")
    announce_ended(bus, job, CLOCK, token=3, outcome="succeeded")

    assert [(heard.type, dict(heard.payload)) for heard in listener.poll(0)] == [
        (MessageType.JOB_STARTED, {"token": 3, "owner": "me"}),
        (MessageType.JOB_ENDED, {"token": 3, "outcome": "succeeded"}),
    ]


def test_bus_that_is_down_is_no_error(bus: MemoryBus) -> None:
    job = JobSpec.of((NETWORK,))
    bus.close()

    assert announce_ready(bus, [job, job], CLOCK) == 0
    announce_ended(bus, job, CLOCK, token=1, outcome="failed")
