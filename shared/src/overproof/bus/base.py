"""The contract of the message bus.

Vocabulary. A *listener* hears every message published after it began to listen, and may miss some
(restart, outage): that is an announcement, a doorbell. A *subscription* belongs to a *group*: each
message goes to one member of the group, at least once; `commit` says that the effects of all that
`poll` has returned so far are durable, and uncommitted messages come again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from overproof.bus.envelope import Envelope
from overproof.bus.topics import Group, Topic
from overproof.errors import MalformedMessage


@dataclass(frozen=True)
class Delivery:
    """One message for a group: its bytes and, if they could be read, the envelope.

    Exactly one of `envelope` and `fault` is set.
    """

    topic: Topic
    raw: bytes
    envelope: Envelope | None = None
    fault: MalformedMessage | None = None

    @classmethod
    def of(cls, topic: Topic, raw: bytes) -> Delivery:
        """Decode `raw`; a message that cannot be read is delivered with its fault."""
        try:
            return cls(topic, raw, envelope=Envelope.decode(raw))
        except MalformedMessage as fault:
            return cls(topic, raw, fault=fault)


class Listener(ABC):
    """Hears announcements of its topics. Not thread-safe; close it when done."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Envelope]:
        """Envelopes heard since the last call, waiting up to `timeout_s` for the first.

        Malformed messages are skipped here: the aggregator alone dead-letters them.

        Raises:
            BusUnavailable: the bus does not answer; call again later, the listener recovers.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the connection. Calling it twice is harmless."""


class Subscription(ABC):
    """Reads topics for a group. Not thread-safe; close it when done."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Delivery]:
        """Messages for this member, waiting up to `timeout_s` for the first.

        Raises:
            BusUnavailable: the bus does not answer; call again later.
        """

    @abstractmethod
    def commit(self) -> None:
        """All that `poll` returned so far is dealt with and will not come again.

        A commit that is refused because members of the group changed is not an error: the
        messages come again, to whoever owns them now.

        Raises:
            BusUnavailable: the bus does not answer.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group without committing. Calling it twice is harmless."""


class Bus(ABC):
    """Publishes and reads messages. Thread-safe; listeners and subscriptions are not."""

    @abstractmethod
    def publish(self, topic: Topic, envelope: Envelope) -> None:
        """Return once the message is stored; messages of one job keep their order.

        Raises:
            BusUnavailable: it could not be stored within the time limit.
            ValueError: the envelope is larger than 64 KiB.
        """

    @abstractmethod
    def publish_raw(self, topic: Topic, raw: bytes, *, key: str = "") -> None:
        """As `publish`, with bytes as they are: for dead letters and their replay."""

    @abstractmethod
    def listen(self, *topics: Topic) -> Listener:
        """A listener that hears every message from now on; it is ready when this returns.

        Raises:
            BusUnavailable: the bus does not answer.
        """

    @abstractmethod
    def subscribe(self, *topics: Topic, group: Group) -> Subscription:
        """A member of `group`; a group that is new begins at the oldest message.

        Raises:
            BusUnavailable: the bus does not answer.
        """

    @abstractmethod
    def check(self) -> str:
        """One line on the server's identity, for `doctor`.

        Raises:
            BusUnavailable: the bus does not answer.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush and free all connections. Calling it twice is harmless."""
