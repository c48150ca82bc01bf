"""The four servers as plain processes on loopback ports."""

import os
import shutil
import signal
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from . import installing, places
from .processes import ServerError, exchange, is_answering_http, run

BUCKET = "overproof-test"
S3_USER = "overproof"
S3_SECRET = "overproof-test-secret"  # guards nothing: the servers listen on loopback alone

Ports = Mapping[str, int]


@dataclass(frozen=True)
class Launch:
    """How a server's process is started."""

    command: list[str | Path]
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None


class Server(ABC):
    """One server: how to get it, start it and know that it serves."""

    name: ClassVar[str]
    variable: ClassVar[str]  # the environment variable that carries its URL to the tests
    port_names: ClassVar[tuple[str, ...]] = ("main",)
    compose_service: ClassVar[str | None] = None
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    @abstractmethod
    def url(self, port: int) -> str:
        """The URL for the tests, given the main port."""

    @abstractmethod
    def is_installed(self) -> bool:
        """Whether `prepare` has nothing to install."""

    @abstractmethod
    def prepare(self, folder: Path, ports: Ports) -> Launch:
        """Installs the program and makes the data folder ready; safe to repeat on old data."""

    @abstractmethod
    def is_ready(self, ports: Ports) -> bool:
        """Whether the server answers requests."""


class Kafka(Server):
    """One Kafka node, broker and controller (KRaft)."""

    name = "kafka"
    variable = "OVERPROOF_TEST_KAFKA_URL"
    port_names: ClassVar[tuple[str, ...]] = ("main", "controller")
    compose_service = "kafka"
    format_options: ClassVar[tuple[str, ...]] = ()

    def url(self, port: int) -> str:
        return f"kafka://127.0.0.1:{port}"

    def is_installed(self) -> bool:
        return installing.has_kafka()

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        # Quick to start rather than fast: it serves tests.
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += [
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            "-cp",
            f"{installing.ensure_kafka()}/*",
        ]
        properties = folder / "server.properties"
        settings = {"log.dirs": str(folder / "data"), **self.settings(ports)}
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "log4j2.properties").write_text(
            "appender.out.type=Console\nappender.out.name=out\n"
            "appender.out.layout.type=PatternLayout\n"
            "appender.out.layout.pattern=%d %p %c{1} %m%n\n"
            "rootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\n"
        )
        if not (folder / "data/meta.properties").exists():
            shutil.rmtree(folder / "data", ignore_errors=True)
            options = ["--cluster-id", str(uuid.uuid4()), "--config", str(properties)]
            run(
                [*java, "kafka.tools.StorageTool", "format", *options, *self.format_options],
                what="formatting Kafka's data folder",
            )
        return Launch([*java, "kafka.Kafka", str(properties)])

    def settings(self, ports: Ports) -> dict[str, str]:
        """What server.properties says apart from the data folder."""
        main, controller = ports["main"], ports["controller"]
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{main},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{main}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            # One node holds every copy, and a group starts without waiting for more members.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
        }

    def is_ready(self, ports: Ports) -> bool:
        # ApiVersions, version 0, correlation id 7: a broker answers it only once it has started.
        body = struct.pack(">hhih", 18, 0, 7, -1)
        answer = exchange(ports["main"], struct.pack(">i", len(body)) + body)
        return answer[4:8] == struct.pack(">i", 7)


class MinIO(Server):
    """The S3 server of the tests."""

    name = "s3"
    variable = "OVERPROOF_TEST_S3_URL"
    port_names = ("main", "console")
    compose_service = "s3"

    def url(self, port: int) -> str:
        return s3_url(port)

    def is_installed(self) -> bool:
        return installing.has_minio()

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        program = installing.ensure_minio()
        data = folder / "data"
        (data / BUCKET).mkdir(parents=True, exist_ok=True)  # a bucket is a folder of its root
        command: list[str | Path] = [program, "server", data, "--quiet"]
        command += ["--address", f"127.0.0.1:{ports['main']}"]
        command += ["--console-address", f"127.0.0.1:{ports['console']}"]
        user, secret = s3_credentials()
        return Launch(
            command,
            {
                "MINIO_ROOT_USER": user,
                "MINIO_ROOT_PASSWORD": secret,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            },
        )

    def is_ready(self, ports: Ports) -> bool:
        return is_answering_http("/minio/health/ready", ports["main"], [200])


class SeaweedFS(Server):
    """A second S3 server by other authors, so that the store keeps to plain S3 calls."""

    name = "s3-second"
    variable = "OVERPROOF_TEST_S3_SECOND_URL"
    program = places.ROOT / ".venv/bin/weed"
    parts = ("master", "volume", "filer", "admin")
    port_names = ("main", "s3.grpc", *parts, *(f"{part}.grpc" for part in parts))

    def url(self, port: int) -> str:
        return s3_url(port)

    def is_installed(self) -> bool:
        return self.program.exists()

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        if not self.is_installed():
            raise ServerError("missing: the program weed comes with `make setup`")
        data = folder / "data"
        data.mkdir(exist_ok=True)
        command: list[str | Path] = [self.program, "-logtostderr", "mini", f"-dir={data}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
        command += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false"]
        command += [f"-s3.port={ports['main']}", f"-s3.port.grpc={ports['s3.grpc']}"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        for part in self.parts:
            command += [f"-{part}.port={ports[part]}", f"-{part}.port.grpc={ports[f'{part}.grpc']}"]
        user, secret = s3_credentials()
        return Launch(command, {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret})

    def is_ready(self, ports: Ports) -> bool:
        return is_answering_http(f"/{BUCKET}", ports["main"], [403])


class Postgres(Server):
    """Postgres with one database, open to everybody on this machine."""

    name = "postgres"
    variable = "OVERPROOF_TEST_POSTGRES_URL"
    compose_service = "postgres"
    stop_signal = signal.SIGINT  # "fast": rolls open transactions back instead of waiting for them

    def url(self, port: int) -> str:
        return f"postgresql+psycopg2://overproof@127.0.0.1:{port}/overproof"

    def is_installed(self) -> bool:
        return installing.has_postgres()

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        programs = installing.ensure_postgres()
        user = None
        if os.geteuid() == 0:  # Postgres refuses to run as root
            user = "postgres"
            shutil.chown(folder, user, user)
        data = folder / "data"
        if not data.exists():
            # Renamed when whole: an interrupted initdb leaves a folder that serves for nothing.
            unfinished = folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            options = ["-U", "overproof", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
            run(
                [programs / "initdb", "-D", str(unfinished), "--no-sync", *options],
                what="making Postgres's data folder",
                user=user,
                folder=folder,
            )
            run(
                [programs / "postgres", "--single", "-D", unfinished, "postgres"],
                what="creating the database",
                user=user,
                folder=folder,
                answer="CREATE DATABASE overproof\n",
            )
            unfinished.rename(data)
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "fsync": "off",  # the tests end processes, never the machine
        }
        command: list[str | Path] = [programs / "postgres", "-D", data, "-p", str(ports["main"])]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return Launch(command, user=user)

    def is_ready(self, ports: Ports) -> bool:
        # A start-up message, protocol 3.0: answered with R(eady to authenticate) or an E(rror).
        body = struct.pack(">i", 196608) + b"user\0overproof\0database\0overproof\0\0"
        return exchange(ports["main"], struct.pack(">i", len(body) + 4) + body)[:1] == b"R"


def s3_url(port: int) -> str:
    """The URL of the tests' bucket on a loopback port."""
    return f"s3://{BUCKET}?endpoint=127.0.0.1:{port}&secure=false"


def s3_credentials() -> tuple[str, str]:
    """Key and secret of both S3 servers; those of the caller's own server where one is given."""
    key = os.environ.get("AWS_ACCESS_KEY_ID")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
    if os.environ.get(MinIO.variable) and key and secret:
        return key, secret
    return S3_USER, S3_SECRET


SERVERS: tuple[Server, ...] = (Kafka(), MinIO(), SeaweedFS(), Postgres())
