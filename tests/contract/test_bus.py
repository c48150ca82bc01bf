"""What every bus does. Tests share one broker, so each looks only at the jobs of its own run."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from enum import StrEnum
from typing import cast

import pytest

from overproof.bus.base import Bus, Delivery, Listener, Subscription
from overproof.bus.envelope import MAX_BYTES, Envelope, MessageType
from overproof.bus.memory import MemoryBus
from overproof.bus.topics import Group, Topic
from overproof.core.clock import ManualClock
from overproof.errors import BusUnavailable

TIMEOUT_S = 15.0


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus(request: pytest.FixtureRequest, server_url: Callable[[str], str]) -> Iterator[Bus]:
    if request.param == "memory":
        opened: Bus = MemoryBus()
    else:
        from overproof.bus.kafka import KafkaBus

        opened = KafkaBus.from_url(server_url("KAFKA"))
    with closing(opened):
        yield opened


@pytest.fixture
def run() -> str:
    """What the job ids of this test begin with."""
    return uuid.uuid4().hex[:16]


@pytest.fixture
def group(run: str) -> Group:
    """A group that nobody has used."""
    return cast(Group, f"test-{run}")


def message(job_id: str, number: int = 0) -> Envelope:
    return Envelope.new(
        MessageType.JOB_READY, now=1_700_000_000.0, job_id=job_id, payload={"number": number}
    )


def hear(listener: Listener, run: str, count: int) -> list[Envelope]:
    """The first `count` envelopes of `run`, or those that came in time."""
    heard: list[Envelope] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(heard) < count and time.monotonic() < deadline:
        heard += [item for item in listener.poll(0.5) if item.job_id.startswith(run)]
    return heard


def read(subscription: Subscription, run: str, count: int) -> list[Envelope]:
    """As `hear`, for a group."""
    got: list[Envelope] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(got) < count and time.monotonic() < deadline:
        got += envelopes_of(subscription.poll(0.5), run)
    return got


def envelopes_of(deliveries: list[Delivery], run: str) -> list[Envelope]:
    envelopes = [item.envelope for item in deliveries if item.envelope is not None]
    return [item for item in envelopes if item.job_id.startswith(run)]


def test_every_listener_hears_every_message(bus: Bus, run: str) -> None:
    sent = [message(f"{run}-{number}") for number in range(50)]
    with ExitStack() as stack:
        listeners = [stack.enter_context(closing(bus.listen(Topic.JOBS_DISTILL))) for _ in range(8)]

        for envelope in sent:
            bus.publish(Topic.JOBS_DISTILL, envelope)

        for listener in listeners:
            heard = hear(listener, run, len(sent))
            assert {item.message_id for item in heard} == {item.message_id for item in sent}
            assert len(heard) == len(sent)


def test_listener_hears_nothing_from_before_it_listened(bus: Bus, run: str) -> None:
    bus.publish(Topic.JOBS_TRAIN, message(f"{run}-early"))
    with closing(bus.listen(Topic.JOBS_TRAIN)) as listener:
        bus.publish(Topic.JOBS_TRAIN, message(f"{run}-late"))

        heard = hear(listener, run, 1) + listener.poll(0)

        assert [item.job_id for item in heard] == [f"{run}-late"]


def test_listener_hears_only_its_topic(bus: Bus, run: str) -> None:
    with closing(bus.listen(Topic.JOBS_ATTACK)) as listener:
        bus.publish(Topic.JOBS_TRAIN, message(f"{run}-train"))
        bus.publish(Topic.JOBS_ATTACK, message(f"{run}-attack"))

        heard = hear(listener, run, 1)

        assert [item.job_id for item in heard] == [f"{run}-attack"]


def test_listener_hears_all_its_topics(bus: Bus, run: str) -> None:
    topics = (Topic.JOBS_TRAIN, Topic.JOBS_ATTACK)
    with closing(bus.listen(*topics)) as listener:
        for topic in topics:
            bus.publish(topic, message(f"{run}-{topic.value}"))

        heard = hear(listener, run, 2)

    assert {item.job_id for item in heard} == {f"{run}-{topic.value}" for topic in topics}


def test_poll_without_messages_returns_after_its_timeout(bus: Bus) -> None:
    with closing(bus.listen(Topic.DEAD_JOBS_ATTACK)) as listener:
        began = time.monotonic()

        heard = listener.poll(0.2)

        assert heard == []
        assert 0.15 < time.monotonic() - began < 2


def test_waiting_poll_wakes_for_a_message(bus: Bus, run: str) -> None:
    with closing(bus.listen(Topic.JOBS_DISTILL)) as listener, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hear, listener, run, 1)
        time.sleep(0.1)
        began = time.monotonic()

        bus.publish(Topic.JOBS_DISTILL, message(f"{run}-1"))

        assert len(waiting.result()) == 1
        assert time.monotonic() - began < 5


def test_messages_of_one_job_keep_their_order(bus: Bus, run: str, group: Group) -> None:
    jobs = [f"{run}-{name}" for name in "abc"]
    with (
        closing(bus.listen(Topic.ARTIFACTS_UPLOADED)) as listener,
        closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as subscription,
    ):
        for number in range(10):
            for job_id in jobs:
                bus.publish(Topic.ARTIFACTS_UPLOADED, message(job_id, number))

        for got in (hear(listener, run, 30), read(subscription, run, 30)):
            for job_id in jobs:
                numbers = [item.payload["number"] for item in got if item.job_id == job_id]
                assert numbers == list(range(10))


def test_messages_of_many_threads_are_each_stored_once(bus: Bus, run: str) -> None:
    sent = [message(f"{run}-{number}") for number in range(80)]
    with closing(bus.listen(Topic.JOBS_TRAIN)) as listener:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda envelope: bus.publish(Topic.JOBS_TRAIN, envelope), sent))

        heard = hear(listener, run, len(sent)) + listener.poll(0)

        ids = [item.message_id for item in heard if item.job_id.startswith(run)]
        assert sorted(ids) == sorted(item.message_id for item in sent)


def test_new_group_begins_at_the_oldest_message(bus: Bus, run: str, group: Group) -> None:
    bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-1"))

    with closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as subscription:
        got = read(subscription, run, 1)

    assert [item.job_id for item in got] == [f"{run}-1"]


def test_subscription_reads_all_its_topics(bus: Bus, run: str, group: Group) -> None:
    topics = (Topic.ARTIFACTS_UPLOADED, Topic.DEAD_ARTIFACTS_UPLOADED)
    for topic in topics:
        bus.publish(topic, message(f"{run}-{topic.value}"))

    with closing(bus.subscribe(*topics, group=group)) as subscription:
        got = read(subscription, run, 2)

    assert {item.job_id for item in got} == {f"{run}-{topic.value}" for topic in topics}


def test_uncommitted_messages_come_again_and_committed_ones_do_not(
    bus: Bus, run: str, group: Group
) -> None:
    bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-committed"))
    with closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as first:
        assert len(read(first, run, 1)) == 1
        first.commit()
        bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-uncommitted"))
        assert len(read(first, run, 1)) == 1

    with closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as second:
        again = read(second, run, 1)
        again += envelopes_of(second.poll(0.2), run)

    assert [item.job_id for item in again] == [f"{run}-uncommitted"]


def test_members_of_a_group_get_each_message_at_least_once(
    bus: Bus, run: str, group: Group
) -> None:
    wanted = {f"{run}-{number}" for number in range(40)}
    seen: set[str] = set()
    joined = threading.Barrier(3, timeout=TIMEOUT_S)

    def member() -> None:
        with closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as subscription:
            joined.wait()
            deadline = time.monotonic() + TIMEOUT_S
            while not wanted <= seen and time.monotonic() < deadline:
                seen.update(item.job_id for item in envelopes_of(subscription.poll(0.2), run))
                subscription.commit()

    with ThreadPoolExecutor(2) as pool:
        members = [pool.submit(member) for _ in range(2)]
        joined.wait()
        for job_id in wanted:
            bus.publish(Topic.ARTIFACTS_UPLOADED, message(job_id))
        for ended in members:
            ended.result()

    assert wanted <= seen


def test_waiting_member_takes_over_what_the_other_left_uncommitted(
    bus: Bus, run: str, group: Group
) -> None:
    bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-1"))
    first = bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)
    with closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as second:
        with closing(first):
            assert len(read(first, run, 1)) == 1

        got = read(second, run, 1)

    assert [item.job_id for item in got] == [f"{run}-1"]


def test_commit_while_a_member_joins_is_no_error(bus: Bus, run: str, group: Group) -> None:
    bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-1"))
    with (
        closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as first,
        closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        assert len(read(first, run, 1)) == 1
        joining = pool.submit(second.poll, 1.5)

        while not joining.done():
            first.commit()
            first.poll(0.1)

        assert joining.exception() is None


def test_malformed_message_reaches_groups_with_its_fault_and_no_listener(
    bus: Bus, run: str, group: Group
) -> None:
    raw = b"\xff not an envelope " + run.encode()
    with (
        closing(bus.listen(Topic.ARTIFACTS_UPLOADED)) as listener,
        closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as subscription,
    ):
        bus.publish_raw(Topic.ARTIFACTS_UPLOADED, raw, key=run)
        bus.publish(Topic.ARTIFACTS_UPLOADED, message(run))

        heard = hear(listener, run, 1)
        delivered: list[Delivery] = []
        while not envelopes_of(delivered, run):
            delivered += subscription.poll(0.5)

        assert [item.job_id for item in heard] == [run]
        [malformed] = [item for item in delivered if item.raw == raw]
        assert malformed.envelope is None
        assert malformed.fault is not None
        assert malformed.fault.raw == raw
        assert malformed.topic is Topic.ARTIFACTS_UPLOADED


def test_raw_bytes_of_a_dead_letter_can_be_replayed(bus: Bus, run: str) -> None:
    raw = message(f"{run}-1").encode()
    with closing(bus.listen(Topic.JOBS_TRAIN)) as listener:
        bus.publish_raw(Topic.JOBS_TRAIN, raw)

        [heard] = hear(listener, run, 1)

    assert heard == Envelope.decode(raw)


def test_message_over_the_limit_is_refused(bus: Bus, run: str) -> None:
    large = Envelope.new(
        MessageType.JOB_READY, now=0.0, job_id=f"{run}-large", payload={"text": "x" * MAX_BYTES}
    )
    with closing(bus.listen(Topic.JOBS_TRAIN)) as listener:
        with pytest.raises(ValueError, match="exceeds 65536"):
            bus.publish(Topic.JOBS_TRAIN, large)
        bus.publish(Topic.JOBS_TRAIN, message(f"{run}-small"))

        heard = hear(listener, run, 1)

    assert [item.job_id for item in heard] == [f"{run}-small"]


def test_check_names_the_bus_in_one_line(bus: Bus) -> None:
    line = bus.check()

    assert line
    assert "\n" not in line


def test_everything_can_be_closed_twice(bus: Bus, group: Group) -> None:
    listener = bus.listen(Topic.JOBS_TRAIN)
    subscription = bus.subscribe(Topic.JOBS_TRAIN, group=group)

    for _ in range(2):
        listener.close()
        subscription.close()
        bus.close()

    with pytest.raises(BusUnavailable, match="closed"):
        bus.publish(Topic.JOBS_TRAIN, message("job"))


def test_closed_reader_says_so(bus: Bus, group: Group) -> None:
    listener = bus.listen(Topic.JOBS_TRAIN)
    subscription = bus.subscribe(Topic.JOBS_TRAIN, group=group)
    listener.close()
    subscription.close()

    with pytest.raises(BusUnavailable):
        listener.poll(0)
    with pytest.raises(BusUnavailable):
        subscription.poll(0)


@pytest.mark.kafka
def test_kafka_listener_hears_partitions_that_came_after_it(
    server_url: Callable[[str], str], run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka import KafkaAdminClient

    from overproof.bus import kafka as module

    class Fresh(StrEnum):
        TOPIC = f"test.{uuid.uuid4().hex}"

    # The producer asks for partitions this often in real time; the listener by the clock.
    monkeypatch.setattr(module, "DISCOVERY_S", 0.2)
    topic = cast(Topic, Fresh.TOPIC)
    clock = ManualClock()
    url = f"{server_url('KAFKA')}?partitions=1&replication=1"
    servers = server_url("KAFKA").removeprefix("kafka://").split(",")
    with (
        closing(KafkaAdminClient(bootstrap_servers=servers)) as admin,
        closing(module.KafkaBus.from_url(url, clock=clock)) as bus,
        closing(bus.listen(topic)) as listener,
    ):
        admin.create_partitions({topic.value: 4})
        sent = {f"{run}-{number}" for number in range(20)}
        time.sleep(0.5)
        for job_id in sent:
            bus.publish(topic, message(job_id))

        clock.advance(1.0)
        heard = {item.job_id for item in hear(listener, run, len(sent))}
        partitions = len(bus.partitions_of(topic))
        admin.delete_topics([topic.value])

    assert heard == sent
    assert partitions == 4


@pytest.mark.kafka
def test_kafka_commit_of_a_removed_member_is_no_error_and_its_messages_come_again(
    server_url: Callable[[str], str], run: str, group: Group
) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import MemberToRemove

    from overproof.bus.kafka import KafkaBus

    servers = server_url("KAFKA").removeprefix("kafka://").split(",")
    with (
        closing(KafkaAdminClient(bootstrap_servers=servers)) as admin,
        closing(KafkaBus.from_url(server_url("KAFKA"))) as bus,
        closing(bus.subscribe(Topic.ARTIFACTS_UPLOADED, group=group)) as subscription,
    ):
        bus.publish(Topic.ARTIFACTS_UPLOADED, message(f"{run}-1"))
        assert len(read(subscription, run, 1)) == 1
        [member] = admin.describe_groups([group])[group]["members"]
        admin.remove_group_members(group, [MemberToRemove(member_id=member["member_id"])])

        subscription.commit()
        again = read(subscription, run, 1)

    assert [item.job_id for item in again] == [f"{run}-1"]


@pytest.mark.kafka
def test_kafka_bytes_that_the_broker_does_not_take_are_no_outage(
    server_url: Callable[[str], str], run: str
) -> None:
    from overproof.bus.kafka import KafkaBus

    with (
        closing(KafkaBus.from_url(server_url("KAFKA"))) as bus,
        closing(bus.listen(Topic.DEAD_JOBS_TRAIN)) as listener,
    ):
        with pytest.raises(ValueError, match=r"max\.message\.bytes"):
            bus.publish_raw(Topic.DEAD_JOBS_TRAIN, b"x" * (2 << 20))
        bus.publish(Topic.DEAD_JOBS_TRAIN, message(f"{run}-small"))

        assert len(hear(listener, run, 1)) == 1


@pytest.mark.kafka
def test_kafka_topic_that_may_not_be_created_is_named(server_url: Callable[[str], str]) -> None:
    from overproof.bus.kafka import KafkaBus

    class Absent(StrEnum):
        TOPIC = f"test.{uuid.uuid4().hex}"

    url = f"{server_url('KAFKA')}?create_topics=false"
    with (
        closing(KafkaBus.from_url(url)) as bus,
        pytest.raises(BusUnavailable, match=Absent.TOPIC.value),
    ):
        bus.listen(cast(Topic, Absent.TOPIC))


@pytest.mark.kafka
def test_deployments_with_different_prefixes_do_not_hear_each_other(
    server_url: Callable[[str], str],
) -> None:
    from overproof.bus.kafka import KafkaBus

    url = server_url("KAFKA")
    first, second = (KafkaBus.from_url(f"{url}?prefix={uuid.uuid4().hex[:8]}.") for _ in range(2))
    with closing(first), closing(second):
        ours = first.subscribe(Topic.EVENTS_JOBS, group=Group.AGGREGATOR)
        with closing(ours):
            second.publish_raw(Topic.EVENTS_JOBS, b"theirs")
            first.publish_raw(Topic.EVENTS_JOBS, b"ours")
            deliveries: list[Delivery] = []
            deadline = time.monotonic() + 20
            while not deliveries and time.monotonic() < deadline:
                deliveries = ours.poll(1)

    assert [(delivery.topic, delivery.raw) for delivery in deliveries] == [
        (Topic.EVENTS_JOBS, b"ours")
    ]
