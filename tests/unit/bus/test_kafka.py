"""What needs no broker: addresses, options, secrets, and a server that is not there."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.kafka import KafkaBus
from overproof.bus.kafka_security import KafkaSecurity
from overproof.bus.topics import Group, Topic
from overproof.errors import BusUnavailable, SettingsError

SECRET = "very-secret-password"


@pytest.fixture(autouse=True)
def _library_log_level() -> Iterator[None]:
    library = logging.getLogger("kafka")
    level = library.level
    yield
    library.setLevel(level)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://", "names no brokers"),
        ("kafka:", "names no brokers"),
        ("http://host:9092", "names no brokers"),
        ("kafka://host:9092/topic", "names no brokers"),
        ("kafka://host", "host:port"),
        ("kafka://host:9092,other:port", "host:port"),
        ("kafka://host:9092?sekurity=ssl", "unknown options: sekurity"),
        ("kafka://host:9092?partitions=many", "bad value"),
        ("kafka://host:9092?create_topics=perhaps", "neither true nor false"),
        ("kafka://host:9092?security=tls", "use one of plaintext, ssl"),
        ("kafka://host:9092?security=ssl&cafile=/no/such/file", "PEM"),
        ("kafka://host:9092?security=sasl_ssl&mechanism=GSSAPI&username=me", "use one of PLAIN"),
        ("kafka://host:9092?security=sasl_ssl", "a username and a password"),
    ],
)
def test_unusable_url_says_what_is_wrong(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        KafkaBus.from_url(url, password=SECRET)


def test_cafile_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    query = urlencode({"security": "ssl", "cafile": str(tmp_path / "ca.pem")})

    with pytest.raises(SettingsError, match="PEM"):
        KafkaBus.from_url(f"kafka://host:9092?{query}")


@pytest.mark.parametrize(
    "url", [f"kafka://me:{SECRET}@host:9092", f"kafka://host:9092?password={SECRET}"]
)
def test_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        KafkaBus.from_url(url)

    assert SECRET not in str(raised.value)


def test_sasl_without_a_password_is_refused() -> None:
    with pytest.raises(SettingsError, match="password"):
        KafkaBus.from_url("kafka://host:9092?security=sasl_ssl&username=me")


def test_security_tells_the_library_what_it_needs() -> None:
    options = KafkaSecurity(
        protocol="sasl_plaintext", mechanism="PLAIN", username="me", password=SECRET
    ).options()

    assert options == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": SECRET,
    }


def test_tls_checks_certificates_and_names() -> None:
    context = KafkaSecurity(protocol="ssl").options()["ssl_context"]

    assert context.check_hostname


def test_password_is_not_shown() -> None:
    security = KafkaSecurity(protocol="sasl_ssl", username="me", password=SECRET)

    assert SECRET not in repr(security)


def test_library_does_not_log_what_goes_over_the_wire_when_there_is_a_password() -> None:
    # Its debug log has the bytes of the handshake, and with PLAIN the password in them.
    logging.getLogger("kafka").setLevel(logging.DEBUG)

    KafkaBus.from_url("kafka://host:9092?security=sasl_plaintext&username=me", password=SECRET)

    assert not logging.getLogger("kafka.net.connection").isEnabledFor(logging.DEBUG)


def test_server_that_is_down_is_told_at_once_and_leaves_no_thread() -> None:
    bus = KafkaBus.from_url("kafka://127.0.0.1:1")
    threads = threading.active_count()
    envelope = Envelope.new(MessageType.JOB_READY, now=0.0)
    began = time.monotonic()

    for call in (
        lambda: bus.publish(Topic.JOBS_TRAIN, envelope),
        lambda: bus.listen(Topic.JOBS_TRAIN),
        lambda: bus.subscribe(Topic.JOBS_TRAIN, group=Group.AGGREGATOR),
        bus.check,
    ):
        with pytest.raises(BusUnavailable, match=r"Kafka at 127\.0\.0\.1:1 failed"):
            call()

    assert time.monotonic() - began < 2
    assert threading.active_count() == threads
    bus.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # library's sockets
def test_server_that_is_no_kafka_is_given_up_in_time_and_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        bus = KafkaBus.from_url(f"kafka://127.0.0.1:{port}", timeout_s=1.0)
        threads = threading.active_count()
        began = time.monotonic()

        with pytest.raises(BusUnavailable, match="security settings"):
            bus.listen(Topic.JOBS_TRAIN)

        assert time.monotonic() - began < 5
        deadline = time.monotonic() + 5
        while threading.active_count() > threads and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() == threads
