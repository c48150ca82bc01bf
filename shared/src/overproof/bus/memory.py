"""The bus within one process: embedded mode runs on it, and so do the tests of its users."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from overproof.bus.base import Bus, Delivery, Listener, Subscription
from overproof.bus.envelope import Envelope
from overproof.bus.topics import Group, Topic
from overproof.errors import BusUnavailable, MalformedMessage

MAX_BYTES_PER_TOPIC = 8 << 20
# What a message costs beside its bytes; it also bounds the number of empty ones.
_OVERHEAD_BYTES = 100
# As many as Kafka's client gives at once.
_MAX_MESSAGES = 500

Drop = Callable[[Topic, Envelope], bool]


class MemoryBus(Bus):
    """Topics as lists, readers as positions in them, all behind one lock.

    A topic behaves as one with a single partition: the member of a group that came first reads
    all of it, and the next one takes over at the last commit when that member closes. Memory is
    bounded: of each topic the newest 8 MiB are kept. A reader that falls behind further misses
    messages, which is safe, since a message is a doorbell and the database is the truth; it costs
    the time until the next sweep.

    Args:
        drop: announcements that listeners miss, as on a bad day in a cluster; groups get them.
    """

    def __init__(self, *, drop: Drop | None = None) -> None:
        self._kept = _Kept()
        self._drop = drop

    def publish(self, topic: Topic, envelope: Envelope) -> None:
        """Append to the topic; all messages of a topic keep their order."""
        self.publish_raw(topic, envelope.encode(), key=envelope.job_id)

    def publish_raw(self, topic: Topic, raw: bytes, *, key: str = "") -> None:
        """Append bytes as they are."""
        with self._kept.changed:
            self._kept.refuse_if_closed()
            self._kept.logs[topic].append(raw)
            self._kept.changed.notify_all()

    def listen(self, *topics: Topic) -> Listener:
        """A position at the end of each topic."""
        return _MemoryListener(self._kept, topics, self._drop)

    def subscribe(self, *topics: Topic, group: Group) -> Subscription:
        """A member of the group, which reads a topic once it is the first."""
        return _MemorySubscription(self._kept, topics, group)

    def check(self) -> str:
        """How many messages are kept."""
        with self._kept.changed:
            self._kept.refuse_if_closed()
            return f"in this process, {sum(map(len, self._kept.logs.values()))} messages kept"

    def close(self) -> None:
        """Refuse all further calls and wake those who wait."""
        with self._kept.changed:
            self._kept.closed = True
            self._kept.changed.notify_all()


class _Log:
    """The newest messages of a topic, numbered from 0 on for ever."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._size_bytes = 0
        self.end = 0

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, raw: bytes) -> None:
        self._messages.append(raw)
        self._size_bytes += len(raw) + _OVERHEAD_BYTES
        self.end += 1
        while self._size_bytes > MAX_BYTES_PER_TOPIC:
            self._size_bytes -= len(self._messages.popleft()) + _OVERHEAD_BYTES

    def read(self, position: int) -> tuple[list[bytes], int]:
        """Messages from `position` on, as many as fit one call, and the position after them."""
        oldest = self.end - len(self)
        first = max(position - oldest, 0)
        messages = list(islice(self._messages, first, first + _MAX_MESSAGES))
        return messages, oldest + first + len(messages)


@dataclass
class _Place:
    """Where a group is in a topic. Its first member is the one that reads."""

    committed: int = 0
    position: int = 0
    members: list[_MemorySubscription] = field(default_factory=list)


class _Kept:
    """All that the bus holds; touched only under the lock of `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.logs = {topic: _Log() for topic in Topic}
        self.places: dict[tuple[str, Topic], _Place] = {}
        self.closed = False

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise BusUnavailable("the bus of this process is closed; make a new one")

    def wait_for(
        self, take: Callable[[], list[tuple[Topic, bytes]]], timeout_s: float
    ) -> list[tuple[Topic, bytes]]:
        """The first result of `take` that is not empty; empty after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                self.refuse_if_closed()
                left_s = deadline - time.monotonic()
                if (taken := take()) or left_s <= 0:
                    return taken
                self.changed.wait(left_s)


class _MemoryListener(Listener):
    def __init__(self, kept: _Kept, topics: tuple[Topic, ...], drop: Drop | None) -> None:
        self._kept = kept
        self._drop = drop
        self._closed = False
        with kept.changed:
            kept.refuse_if_closed()
            self._positions = {topic: kept.logs[topic].end for topic in topics}

    def poll(self, timeout_s: float) -> list[Envelope]:
        heard = []
        for topic, raw in self._kept.wait_for(self._take, timeout_s):
            try:
                envelope = Envelope.decode(raw)
            except MalformedMessage:
                continue
            if self._drop is None or not self._drop(topic, envelope):
                heard.append(envelope)
        return heard

    def close(self) -> None:
        self._closed = True

    def _take(self) -> list[tuple[Topic, bytes]]:
        if self._closed:
            raise BusUnavailable("this listener is closed; make a new one")
        taken = []
        for topic, position in self._positions.items():
            messages, self._positions[topic] = self._kept.logs[topic].read(position)
            taken += [(topic, raw) for raw in messages]
        return taken


class _MemorySubscription(Subscription):
    def __init__(self, kept: _Kept, topics: tuple[Topic, ...], group: str) -> None:
        self._kept = kept
        self._closed = False
        with kept.changed:
            kept.refuse_if_closed()
            self._places = {
                topic: kept.places.setdefault((group, topic), _Place()) for topic in topics
            }
            for place in self._places.values():
                place.members.append(self)

    def poll(self, timeout_s: float) -> list[Delivery]:
        return [
            Delivery.of(topic, raw) for topic, raw in self._kept.wait_for(self._take, timeout_s)
        ]

    def commit(self) -> None:
        with self._kept.changed:
            self._refuse_if_closed()
            for _, place in self._own_places():
                place.committed = place.position

    def close(self) -> None:
        with self._kept.changed:
            if self._closed:
                return
            for _, place in self._own_places():
                place.position = place.committed
            for place in self._places.values():
                place.members.remove(self)
            self._closed = True
            self._kept.changed.notify_all()

    def _own_places(self) -> list[tuple[Topic, _Place]]:
        """Those that this member reads, since it is the first of its group."""
        return [item for item in self._places.items() if item[1].members[0] is self]

    def _take(self) -> list[tuple[Topic, bytes]]:
        self._refuse_if_closed()
        taken = []
        for topic, place in self._own_places():
            messages, place.position = self._kept.logs[topic].read(place.position)
            taken += [(topic, raw) for raw in messages]
        return taken

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BusUnavailable("this subscription is closed; make a new one")
