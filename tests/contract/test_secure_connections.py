"""Encryption, certificates and passwords by settings alone, on real servers that insist on them."""

from __future__ import annotations

import gc
import io
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from overproof.bus.base import Listener
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.kafka import KafkaBus
from overproof.bus.topics import Group, Topic
from overproof.errors import BusUnavailable, DatabaseUnavailable, StoreUnavailable
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.runtime.settings import Settings
from overproof.runtime.stores import open_store
from overproof.runtime.wiring import open_bus
from tests.secure_servers import (
    PASSWORD,
    USER,
    Certificates,
    SecureKafka,
    SecureMinIO,
    SecurePostgres,
    make_certificates,
)
from tests.servers import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WRONG_PASSWORD = "wr0ng: p%40ss/w@rd"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("ours") / "certificates", "our")


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of an authority that did not sign the servers."""
    return make_certificates(tmp_path_factory.mktemp("others") / "certificates", "another")


@pytest.fixture(autouse=True)
def no_password_anywhere() -> Iterator[None]:
    """Whatever a test does, no line of any logger holds a password, tracebacks included."""
    root, library = logging.getLogger(), logging.getLogger("kafka")
    levels = root.level, library.level
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield
    root.removeHandler(handler)
    root.setLevel(levels[0])
    library.setLevel(levels[1])
    assert_keeps_secrets(written.getvalue())


def assert_keeps_secrets(message: object) -> None:
    """Neither password, as it is or as it stands in a URL."""
    for password in (PASSWORD, WRONG_PASSWORD):
        assert password not in str(message)
        assert quote(password, safe="") not in str(message)


# ---- Kafka -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka(certificates: Certificates) -> Iterator[str]:
    """URL of a Kafka that wants TLS and a password; what a client needs is not in it."""
    with serving(SecureKafka(certificates)) as server:
        yield server.url


def kafka_settings(
    url: str,
    *,
    cafile: Path | None,
    mechanism: str = "SCRAM-SHA-512",
    password: str = PASSWORD,
) -> Settings:
    options = {"security": "sasl_ssl", "mechanism": mechanism, "username": USER}
    if cafile is not None:
        options["cafile"] = str(cafile)
    return Settings(bus_url=f"{url}?{urlencode(options)}", kafka_password=password)


def heard_within(listener: Listener, timeout_s: float) -> list[Envelope]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if envelopes := listener.poll(0.5):
            return envelopes
    return []


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_kafka_with_tls_and_a_password_takes_and_gives_messages(
    kafka: str, certificates: Certificates, mechanism: str
) -> None:
    settings = kafka_settings(kafka, cafile=certificates.authority, mechanism=mechanism)
    envelope = Envelope.new(MessageType.JOB_READY, now=1.0, job_id="job-1")

    with closing(open_bus(settings)) as bus, closing(bus.listen(Topic.JOBS_TRAIN)) as listener:
        bus.publish(Topic.JOBS_TRAIN, envelope)
        heard = heard_within(listener, 30)

    assert heard == [envelope]


@pytest.mark.kafka
def test_group_reads_from_kafka_with_tls_and_a_password(
    kafka: str, certificates: Certificates
) -> None:
    settings = kafka_settings(kafka, cafile=certificates.authority)

    with closing(open_bus(settings)) as bus:
        bus.publish_raw(Topic.EVENTS_JOBS, b"for the group")
        with closing(bus.subscribe(Topic.EVENTS_JOBS, group=Group.AGGREGATOR)) as subscription:
            deadline = time.monotonic() + 30
            delivered = subscription.poll(1)
            while not delivered and time.monotonic() < deadline:
                delivered = subscription.poll(1)
            subscription.commit()

    assert [delivery.raw for delivery in delivered] == [b"for the group"]


def refusal_of(bus: KafkaBus) -> str:
    with closing(bus), pytest.raises(BusUnavailable) as raised:
        bus.check()
    return str(raised.value)


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_wrong_kafka_password_is_an_unavailable_bus(
    kafka: str, certificates: Certificates, mechanism: str
) -> None:
    url = kafka_settings(kafka, cafile=certificates.authority, mechanism=mechanism).bus_url
    bus = KafkaBus.from_url(url, password=WRONG_PASSWORD, timeout_s=4)

    refusal = refusal_of(bus)

    assert "security settings" in refusal
    assert_keeps_secrets(refusal)


@pytest.mark.kafka
# kafka-python 3.0 leaves the sockets of failed handshakes to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_kafka_under_an_unknown_authority_is_an_unavailable_bus(
    kafka: str, others: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    # Records of its errors would hold the sockets.
    caplog.set_level(logging.CRITICAL, "kafka")
    url = kafka_settings(kafka, cafile=others.authority).bus_url
    bus = KafkaBus.from_url(url, password=PASSWORD, timeout_s=4)

    refusal = refusal_of(bus)
    gc.collect()

    assert "security settings" in refusal
    assert_keeps_secrets(refusal)


# ---- S3 --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def s3(certificates: Certificates) -> Iterator[str]:
    """URL of an S3 server that wants TLS."""
    with serving(SecureMinIO(certificates)) as server:
        yield server.url


def s3_settings(url: str, cafile: Path | None, secret: str = PASSWORD) -> Settings:
    trust = "" if cafile is None else "&" + urlencode({"cafile": str(cafile)})
    return Settings(artifacts_url=url + trust, s3_access_key=USER, s3_secret_key=secret)


@pytest.mark.s3
def test_s3_with_tls_keeps_artifacts(s3: str, certificates: Certificates, tmp_path: Path) -> None:
    store = open_store(s3_settings(s3, certificates.authority))
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")

    ref = store.put("job-1/1/file", source, media_type="application/octet-stream")

    assert store.put_once("job-1/manifest", b"manifest")
    assert not store.put_once("job-1/manifest", b"another")
    assert store.fetch(ref, tmp_path / "fetched").read_bytes() == b"some bytes"


@pytest.mark.s3
def test_s3_under_an_unknown_authority_is_an_unavailable_store(
    s3: str, others: Certificates
) -> None:
    for cafile in (None, others.authority):
        with pytest.raises(StoreUnavailable, match="SSLError") as raised:
            open_store(s3_settings(s3, cafile)).read("key")

        assert_keeps_secrets(raised.value)


@pytest.mark.s3
def test_wrong_s3_secret_is_an_unavailable_store(s3: str, certificates: Certificates) -> None:
    store = open_store(s3_settings(s3, certificates.authority, WRONG_PASSWORD))

    with pytest.raises(StoreUnavailable, match="credentials") as raised:
        store.put_once("job-1/manifest", b"manifest")

    assert_keeps_secrets(raised.value)


# ---- Postgres --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres(certificates: Certificates) -> Iterator[str]:
    """URL of a Postgres that wants TLS and a password; neither is in it."""
    with serving(SecurePostgres(certificates)) as server:
        yield server.url


def postgres_url(url: str, cafile: Path, password: str = PASSWORD) -> str:
    options = urlencode({"sslmode": "verify-full", "sslrootcert": str(cafile)})
    secret = f":{quote(password, safe='')}" if password else ""
    return f"{url.replace(f'{USER}@', f'{USER}{secret}@')}?{options}"


@pytest.mark.postgres
def test_postgres_with_tls_and_a_password_is_migrated_and_answers(
    postgres: str, certificates: Certificates
) -> None:
    settings = Settings(database_url=postgres_url(postgres, certificates.authority))
    engine = create_engine(settings.database)
    migrate(engine)

    with closing(ResultsRepository(engine)) as repository:
        found = repository.check()
        experiments = repository.experiments()

    assert PASSWORD in settings.secrets()
    assert PASSWORD not in found
    assert experiments == []


@pytest.mark.postgres
def test_postgres_password_may_come_in_a_variable_of_its_own(
    postgres: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    url = postgres_url(postgres, certificates.authority, password="")

    migrate(create_engine(url))

    assert PASSWORD not in url


@pytest.mark.postgres
def test_postgres_under_an_unknown_authority_is_an_unavailable_database(
    postgres: str, others: Certificates
) -> None:
    engine = create_engine(postgres_url(postgres, others.authority))

    with (
        closing(ResultsRepository(engine)) as repository,
        pytest.raises(DatabaseUnavailable, match="certificate verify failed") as raised,
    ):
        repository.experiments()

    assert_keeps_secrets(raised.value)


@pytest.mark.postgres
def test_wrong_postgres_password_is_an_unavailable_database(
    postgres: str, certificates: Certificates
) -> None:
    engine = create_engine(postgres_url(postgres, certificates.authority, WRONG_PASSWORD))

    with (
        closing(ResultsRepository(engine)) as repository,
        pytest.raises(DatabaseUnavailable, match="password authentication failed") as raised,
    ):
        repository.experiments()

    assert_keeps_secrets(raised.value)


@pytest.mark.postgres
def test_postgres_without_tls_is_refused_by_the_server(postgres: str) -> None:
    secret = quote(PASSWORD, safe="")
    url = postgres.replace(f"{USER}@", f"{USER}:{secret}@") + "?sslmode=disable"

    with pytest.raises(DatabaseUnavailable, match="no encryption") as raised:
        migrate(create_engine(url))

    assert_keeps_secrets(raised.value)
