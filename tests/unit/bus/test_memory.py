from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.memory import MAX_BYTES_PER_TOPIC, MemoryBus
from overproof.bus.topics import Group, Topic
from overproof.errors import BusUnavailable

TOPIC = Topic.JOBS_TRAIN


def message(job_id: str, text: str = "") -> Envelope:
    return Envelope.new(MessageType.JOB_READY, now=0.0, job_id=job_id, payload={"text": text})


def test_dropped_announcement_is_missed_by_listeners_and_not_by_groups() -> None:
    bus = MemoryBus(drop=lambda topic, envelope: topic is TOPIC and envelope.job_id == "lost")
    listener = bus.listen(TOPIC)
    subscription = bus.subscribe(TOPIC, group=Group.AGGREGATOR)

    for job_id in ("first", "lost", "last"):
        bus.publish(TOPIC, message(job_id))

    assert [item.job_id for item in listener.poll(0)] == ["first", "last"]
    assert len(subscription.poll(0)) == 3


def test_memory_is_bounded_and_the_newest_messages_are_kept() -> None:
    bus = MemoryBus()
    listener = bus.listen(TOPIC)
    subscription = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    count = 3 * MAX_BYTES_PER_TOPIC // 50_000

    for number in range(count):
        bus.publish(TOPIC, message(str(number), "x" * 50_000))
    heard = [int(item.job_id) for item in listener.poll(0)]
    read = [int(item.envelope.job_id) for item in subscription.poll(0) if item.envelope]

    assert heard == read == list(range(heard[0], count))
    assert 0.9 * MAX_BYTES_PER_TOPIC < len(heard) * 50_000 <= MAX_BYTES_PER_TOPIC


def test_empty_messages_are_bounded_too() -> None:
    bus = MemoryBus()

    for _ in range(100_000):
        bus.publish_raw(TOPIC, b"")

    kept = int(bus.check().split()[-3])
    assert kept < 100_000
    assert kept * sys.getsizeof(b"") <= MAX_BYTES_PER_TOPIC


def test_large_backlog_comes_in_portions_and_whole() -> None:
    bus = MemoryBus()
    subscription = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    for number in range(1200):
        bus.publish(TOPIC, message(str(number)))

    portions = []
    while portion := subscription.poll(0):
        portions.append(portion)

    assert [len(portion) for portion in portions] == [500, 500, 200]


def test_uncommitted_messages_of_a_closed_member_come_in_their_order() -> None:
    bus = MemoryBus()
    first = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    second = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    for number in range(4):
        bus.publish(TOPIC, message(str(number)))
    first.poll(0)
    waiting = second.poll(0)

    first.close()
    taken_over = second.poll(0)

    assert waiting == []
    assert [item.envelope.job_id for item in taken_over if item.envelope] == ["0", "1", "2", "3"]


def test_groups_do_not_disturb_each_other() -> None:
    bus = MemoryBus()
    bus.publish(TOPIC, message("job"))
    aggregator = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    benchmarker = bus.subscribe(TOPIC, group=Group.BENCHMARKER)

    assert len(aggregator.poll(0)) == 1
    assert len(benchmarker.poll(0)) == 1


def test_closing_the_bus_wakes_those_who_wait() -> None:
    bus = MemoryBus()
    listener = bus.listen(TOPIC)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.poll, 60.0)
        time.sleep(0.05)

        bus.close()

        with pytest.raises(BusUnavailable, match="closed"):
            waiting.result(timeout=5)


def test_waiting_costs_no_processor_time() -> None:
    bus = MemoryBus()
    listener = bus.listen(TOPIC)
    began = time.thread_time()

    listener.poll(0.3)

    assert time.thread_time() - began < 0.1


def test_publishers_and_readers_may_be_many_threads() -> None:
    bus = MemoryBus()
    subscription = bus.subscribe(TOPIC, group=Group.AGGREGATOR)
    seen: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set() or len(seen) < 800:
            seen.extend(item.envelope.job_id for item in subscription.poll(0.01) if item.envelope)
            subscription.commit()

    def publish(name: int) -> None:
        for number in range(100):
            bus.publish(TOPIC, message(f"{name}-{number}"))

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(publish, range(8)))
        stop.set()
        reading.result(timeout=20)

    assert sorted(seen) == sorted(f"{name}-{number}" for name in range(8) for number in range(100))
