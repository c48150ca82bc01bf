"""The bus on Apache Kafka. The client library and its errors stay inside this module."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient

from overproof.bus.base import Bus, Delivery, Listener, Subscription
from overproof.bus.envelope import MAX_BYTES, Envelope
from overproof.bus.kafka_security import KafkaSecurity
from overproof.bus.topics import Group, Topic
from overproof.core.clock import Clock, SystemClock
from overproof.errors import BusUnavailable, MalformedMessage, SettingsError

log = logging.getLogger(__name__)

# Kafka itself caps a message at 1 MB by default; the cap that is meant to bind is the broker's.
_MAX_REQUEST_BYTES = 8 << 20
# How often listeners look whether a topic has more partitions than before.
DISCOVERY_S = 30.0

# A commit refused for these says that members of the group changed: messages come again.
_GROUP_CHANGED = (
    kafka_errors.CommitFailedError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
)
_TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_PREFIX = re.compile(r"[A-Za-z0-9.-]{0,100}")
_SERVER = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/@]+):[0-9]{1,5}")


class KafkaBus(Bus):
    """Every listener is a consumer without a group; every subscription is a member of a group.

    A message is stored when all in-sync replicas have it; the producer is idempotent, so one that
    is sent again after a lost answer is stored once. Messages of one job go to one partition.
    Listeners and subscriptions own their connections, and whoever opened one closes it.

    Args:
        servers: `host:port` of brokers to begin with.
        security: how to connect.
        partitions: of topics that are created; -1 is the broker's default. Listeners read all
            partitions, so that more of them serve only the aggregator's scale.
        replication: of topics that are created; -1 is the broker's default.
        prefix: before the names of all topics and groups, so that several deployments can share
            one cluster.
        create_topics: whether missing topics are created on first use.
        timeout_s: how long an answer may take; `publish` gives up after this, or after twice this
            on the first use of a topic.
        clock: says when to look for new partitions.

    Raises:
        SettingsError: a server that is no `host:port`, or unusable security.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        security: KafkaSecurity | None = None,
        partitions: int = -1,
        replication: int = -1,
        prefix: str = "",
        create_topics: bool = True,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        for server in servers:
            if not _SERVER.fullmatch(server):
                raise SettingsError(f"Kafka server {server!r} is not usable; write host:port")
        if not _PREFIX.fullmatch(prefix):
            raise SettingsError(
                f"Kafka prefix {prefix!r} is not usable; take letters, digits, dots and dashes"
            )
        self._servers = tuple(servers)
        self._prefix = prefix
        self._name = f"Kafka at {','.join(servers)}"
        self._topic_options = {"num_partitions": partitions, "replication_factor": replication}
        self._create_topics = create_topics
        self._timeout_s = timeout_s
        self.timeout_ms = int(timeout_s * 1000)
        self.clock = clock or SystemClock()
        security = security or KafkaSecurity()
        if security.password:
            # The library's debug log shows what goes over the wire, the password included.
            library = logging.getLogger("kafka")
            library.setLevel(max(logging.INFO, library.getEffectiveLevel()))
        self._options = {
            "bootstrap_servers": list(servers),
            "bootstrap_timeout_ms": self.timeout_ms,
            "request_timeout_ms": self.timeout_ms // 2,
            # The library's 30 s would leave workers deaf that long after a restart of the broker.
            "reconnect_backoff_max_ms": 1000,
            "metadata_max_age_ms": int(DISCOVERY_S * 1000),
            **security.options(),
        }
        self._lock = threading.Lock()
        self._known_topics: set[Topic] = set()
        self._producer: KafkaProducer | None = None
        self._closed = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        password: str = "",
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> KafkaBus:
        """A bus from `kafka://host:port,host2:port?security=sasl_ssl&username=…`.

        Options: security, mechanism, username, cafile (see `KafkaSecurity`), partitions,
        replication, prefix, create_topics.

        Raises:
            SettingsError: no servers, an unknown option, a bad value, or a password in the URL.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "@" in parts.netloc or "password" in options:
            raise SettingsError("the Kafka URL holds credentials; set the password apart from it")
        servers = [server for server in parts.netloc.split(",") if server]
        if parts.scheme != "kafka" or not servers or parts.path.strip("/"):
            raise SettingsError(f"{url!r} names no brokers; write kafka://host:port,host2:port")
        try:
            bus = cls(
                servers,
                security=KafkaSecurity(
                    protocol=options.pop("security", "plaintext").lower(),
                    mechanism=options.pop("mechanism", "SCRAM-SHA-512").upper(),
                    username=options.pop("username", ""),
                    password=password,
                    cafile=options.pop("cafile", None),
                ),
                partitions=int(options.pop("partitions", "-1")),
                replication=int(options.pop("replication", "-1")),
                prefix=options.pop("prefix", ""),
                create_topics=_parse_bool(options.pop("create_topics", "true")),
                timeout_s=timeout_s,
                clock=clock,
            )
        except ValueError as error:
            raise SettingsError(f"{url!r} has a bad value: {error}") from None
        if options:
            raise SettingsError(f"{url!r} has unknown options: {', '.join(sorted(options))}")
        return bus

    def publish(self, topic: Topic, envelope: Envelope) -> None:
        """Send and wait for the acknowledgement of all in-sync replicas."""
        self.publish_raw(topic, envelope.encode(), key=envelope.job_id)

    def publish_raw(self, topic: Topic, raw: bytes, *, key: str = "") -> None:
        """As `publish`; ValueError when the broker takes no message of that size."""
        self._ensure([topic])
        with self.errors(f"publishing to {topic}"):
            producer = self._connected_producer()
            try:
                sent = producer.send(self.name_of(topic), raw, key=key.encode() or None)
                sent.get(timeout=self._timeout_s + 1)
            except kafka_errors.KafkaError as error:
                self._discard(producer)
                # Such a refusal fails all that is being sent, small messages of others included.
                if isinstance(error, _TOO_LARGE) and len(raw) > MAX_BYTES:
                    raise ValueError(
                        f"{self._name} takes no message of {len(raw)} bytes on {topic}; "
                        "raise the topic's max.message.bytes"
                    ) from error
                raise

    def listen(self, *topics: Topic) -> Listener:
        """A consumer of all partitions, placed at their ends."""
        self._ensure(topics)
        with self.errors(f"listening to {', '.join(topics)}"):
            consumer = self._connect(KafkaConsumer, **_CONSUMER)
            try:
                return _KafkaListener(self, consumer, topics)
            except BaseException:
                consumer.close(autocommit=False, timeout_ms=0)
                raise

    def subscribe(self, *topics: Topic, group: Group) -> Subscription:
        """A member of the consumer group; it joins in its first `poll`."""
        self._ensure(topics)
        with self.errors(f"subscribing {group} to {', '.join(topics)}"):
            consumer = self._connect(
                KafkaConsumer,
                group_id=f"{self._prefix}{group}",
                # A member that died is missed after the first, one that joins waits for the second.
                session_timeout_ms=15_000,
                heartbeat_interval_ms=1000,
                **_CONSUMER,
            )
            consumer.subscribe([self.name_of(topic) for topic in topics])
            return _KafkaSubscription(self, consumer)

    def ensure_topics(self, topics: Iterable[Topic] = tuple(Topic)) -> None:
        """Create those of `topics` that are missing and wait until all can be used.

        Raises:
            BusUnavailable: the broker does not answer, or a topic is missing and may not be
                created.
        """
        wanted = {self.name_of(topic): topic for topic in topics}
        with self.errors("looking for topics"), closing(self._connect(KafkaAdminClient)) as admin:
            missing = [
                found["name"]
                for found in admin.describe_topics(list(wanted))
                if found["error_code"] == kafka_errors.UnknownTopicOrPartitionError.errno
            ]
            if missing and not self._create_topics:
                raise BusUnavailable(
                    f"{self._name} has no topic {', '.join(missing)}; create it, or permit that "
                    "with create_topics=true"
                )
            if missing:
                answer = admin.create_topics(
                    dict.fromkeys(missing, self._topic_options), raise_errors=False
                )
                for created in answer["topics"]:
                    error = kafka_errors.for_code(created["error_code"])
                    # Another process may have been faster.
                    if error not in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
                        raise error(created["name"])
            admin.wait_for_topics(list(wanted), timeout_ms=self.timeout_ms)
        self._known_topics.update(wanted.values())

    def check(self) -> str:
        """The cluster's id and how many brokers it has."""
        with self.errors("its description"), closing(self._connect(KafkaAdminClient)) as admin:
            cluster = admin.describe_cluster()
        return f"{self._name}, cluster {cluster['cluster_id']}, {len(cluster['brokers'])} brokers"

    def close(self) -> None:
        """Close the producer; listeners and subscriptions are closed by those who opened them."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(kafka_errors.KafkaError):
                producer.close(timeout=self._timeout_s)

    def name_of(self, topic: Topic) -> str:
        """What the broker calls `topic`."""
        return f"{self._prefix}{topic.value}"

    def topic_of(self, name: str) -> Topic:
        """The topic that the broker calls `name`."""
        return Topic(name.removeprefix(self._prefix))

    def partitions_of(self, *topics: Topic) -> list[TopicPartition]:
        """All partitions of topics that exist, as last heard from the broker."""
        producer = self._connected_producer()
        return [
            TopicPartition(self.name_of(topic), number)
            for topic in topics
            for number in sorted(producer.partitions_for(self.name_of(topic)))
        ]

    def _ensure(self, topics: Iterable[Topic]) -> None:
        if unknown := [topic for topic in topics if topic not in self._known_topics]:
            self.ensure_topics(unknown)

    def _connected_producer(self) -> KafkaProducer:
        # Whoever finds the lock taken waits for a connection that is being made.
        if not self._lock.acquire(timeout=self._timeout_s):
            raise kafka_errors.KafkaTimeoutError("no connection yet")
        try:
            if self._closed:
                raise BusUnavailable("the bus is closed; make a new one")
            if self._producer is None:
                self._producer = self._connect(
                    KafkaProducer,
                    acks="all",
                    enable_idempotence=True,
                    allow_auto_create_topics=False,
                    max_block_ms=self.timeout_ms,
                    delivery_timeout_ms=self.timeout_ms,
                    max_request_size=_MAX_REQUEST_BYTES,
                )
            return self._producer
        finally:
            self._lock.release()

    def _discard(self, producer: KafkaProducer) -> None:
        """Begin anew after a failure: an idempotent producer may be beyond recovery."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        with suppress(kafka_errors.KafkaError):
            producer.close(timeout=0)

    def _connect(self, client: Callable[..., Any], **options: Any) -> Any:
        """A client of the library that has spoken to a broker."""
        self._require_reachable()
        made: list[KafkaNetClient] = []

        def remember(**settings: Any) -> KafkaNetClient:
            made.append(KafkaNetClient(**settings))
            return made[-1]

        try:
            return client(kafka_client=remember, **self._options, **options)
        except BaseException:
            # The library leaves the thread of a client that could not connect running for ever.
            for net in made:
                net.close()
            raise

    def _require_reachable(self) -> None:
        # The library retries for its whole time limit even when nothing listens at the address.
        for server in self._servers:
            host, _, port = server.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), self._timeout_s).close()
            except OSError as error:
                unreachable = error
            else:
                return
        raise unreachable

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (kafka_errors.KafkaError, OSError) as error:
            raise BusUnavailable(
                f"{self._name} failed at {what}: {type(error).__name__}; "
                "see whether it runs, its address, and the security settings"
            ) from error


_CONSUMER: dict[str, Any] = {
    "enable_auto_commit": False,
    # Where no position is known: new groups, and partitions that a topic got after `listen`.
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
}


class _KafkaListener(Listener):
    def __init__(self, bus: KafkaBus, consumer: KafkaConsumer, topics: tuple[Topic, ...]) -> None:
        self._bus = bus
        self._consumer = consumer
        self._topics = topics
        self._partitions = bus.partitions_of(*topics)
        self._looked_at = bus.clock.monotonic()
        consumer.assign(self._partitions)
        ends = consumer.end_offsets(self._partitions, timeout_ms=bus.timeout_ms)
        for partition, offset in ends.items():
            consumer.seek(partition, offset)

    def poll(self, timeout_s: float) -> list[Envelope]:
        with self._bus.errors(f"listening to {', '.join(self._topics)}"):
            self._look_for_partitions()
            records = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        heard = []
        for record in _in_order(records):
            with suppress(MalformedMessage):
                heard.append(Envelope.decode(record.value or b""))
        return heard

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=self._bus.timeout_ms)

    def _look_for_partitions(self) -> None:
        now = self._bus.clock.monotonic()
        if now - self._looked_at < DISCOVERY_S:
            return
        self._looked_at = now
        partitions = self._bus.partitions_of(*self._topics)
        if len(partitions) > len(self._partitions):
            self._partitions = partitions
            self._consumer.assign(partitions)  # those that it had keep their positions


class _KafkaSubscription(Subscription):
    def __init__(self, bus: KafkaBus, consumer: KafkaConsumer) -> None:
        self._bus = bus
        self._consumer = consumer
        self._has_uncommitted = False

    def poll(self, timeout_s: float) -> list[Delivery]:
        with self._bus.errors("reading for a group"):
            records = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        self._has_uncommitted = self._has_uncommitted or bool(records)
        return [
            Delivery.of(self._bus.topic_of(record.topic), record.value or b"")
            for record in _in_order(records)
        ]

    def commit(self) -> None:
        if not self._has_uncommitted:
            return
        with self._bus.errors("committing"):
            try:
                self._consumer.commit(timeout_ms=self._bus.timeout_ms)
            except _GROUP_CHANGED as error:
                log.info("commit refused, messages come again", extra={"reason": str(error)})
        self._has_uncommitted = False

    def close(self) -> None:
        with suppress(kafka_errors.KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=self._bus.timeout_ms)


def _in_order(records: dict[TopicPartition, list[Any]]) -> Iterator[Any]:
    for partition in records.values():
        yield from partition


def _parse_bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
