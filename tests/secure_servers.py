"""The real servers with encryption and passwords, under certificates made for the occasion."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scripts.testservers import installing, native, processes
from scripts.testservers.native import Launch, Ports

USER = "overproof"
PASSWORD = "p%3Ass/w@rd: of the tests"  # every kind of letter that URLs and messages trip over

_OPENSSL_CONFIG = """\
[req]
prompt = no
distinguished_name = name
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, DNS:localhost
"""


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, and a server on loopback that it vouches for."""

    authority: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path, name: str) -> Certificates:
    """A new authority and a server certificate, valid for a day."""
    folder.mkdir()
    authority, authority_key = _certificate(folder, f"{name} authority", "authority")
    server, server_key = _certificate(
        folder, f"{name} server", "server", "-CA", str(authority), "-CAkey", str(authority_key)
    )
    return Certificates(authority, server, server_key)


def _certificate(folder: Path, name: str, kind: str, *signed_by: str) -> tuple[Path, Path]:
    config, certificate, key = (folder / f"{kind}.{ending}" for ending in ("cnf", "pem", "key"))
    config.write_text(_OPENSSL_CONFIG.format(name=name))
    command = ["openssl", "req", "-x509", "-days", "1", "-config", str(config)]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-extensions", kind, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *signed_by], check=True, capture_output=True)
    return certificate, key


class SecureKafka(native.Kafka):
    """Clients come with TLS and a password, by SCRAM-SHA-512 or PLAIN."""

    port_names = (*native.Kafka.port_names, "internal")
    format_options = ("--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]")

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        keystore = folder / "keystore.pem"
        keystore.write_bytes(
            self.certificates.server_key.read_bytes() + self.certificates.server.read_bytes()
        )
        return super().prepare(folder, ports)

    def settings(self, ports: Ports) -> dict[str, str]:
        clients, internal = (f"127.0.0.1:{ports[name]}" for name in ("main", "internal"))
        module = "org.apache.kafka.common.security"
        return {
            **super().settings(ports),
            # The broker itself comes without: this is about clients.
            "listeners": f"SASL_SSL://{clients},PLAINTEXT://{internal},"
            f"CONTROLLER://127.0.0.1:{ports['controller']}",
            "advertised.listeners": f"SASL_SSL://{clients},PLAINTEXT://{internal}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "keystore.pem",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module}.scram."
            "ScramLoginModule required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{module}.plain."
            f'PlainLoginModule required user_{USER}="{PASSWORD}";',
        }

    def is_ready(self, ports: Ports) -> bool:
        return super().is_ready({"main": ports["internal"]})


class SecureMinIO(native.MinIO):
    """Serves nothing but TLS."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates

    def url(self, port: int) -> str:
        return f"s3://{native.BUCKET}?endpoint=127.0.0.1:{port}&secure=true"

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        certificates = folder / "certs"
        certificates.mkdir(exist_ok=True)
        shutil.copy(self.certificates.server, certificates / "public.crt")
        shutil.copy(self.certificates.server_key, certificates / "private.key")
        launch = super().prepare(folder, ports)
        environment = launch.environment | {
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": PASSWORD,
        }
        return Launch([*launch.command, "--certs-dir", certificates], environment)

    def is_ready(self, ports: Ports) -> bool:
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        try:
            with (
                socket.create_connection(("127.0.0.1", ports["main"]), timeout=1) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
            ):
                encrypted.sendall(b"GET /minio/health/ready HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                return b" 200 " in encrypted.recv(100)
        except OSError:
            return False


class SecurePostgres(native.Postgres):
    """Lets in who comes with TLS and the password."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        launch = super().prepare(folder, ports)
        key = folder / "server.key"
        shutil.copy(self.certificates.server_key, key)
        key.chmod(0o600)
        certificate = Path(shutil.copy(self.certificates.server, folder / "server.pem"))
        rules = folder / "pg_hba.conf"
        rules.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        if launch.user is not None:
            for file in (key, certificate, rules):
                shutil.chown(file, launch.user, launch.user)
        processes.run(
            [installing.ensure_postgres() / "postgres", "--single", "-D", folder / "data", USER],
            what="setting the password",
            user=launch.user,
            folder=folder,
            answer=f"ALTER ROLE {USER} PASSWORD '{PASSWORD}'\n",
        )
        settings = {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key}
        command = list(launch.command)
        for name, value in {**settings, "hba_file": rules}.items():
            command += ["-c", f"{name}={value}"]
        return Launch(command, launch.environment, launch.user)

    def is_ready(self, ports: Ports) -> bool:
        # It serves once it refuses who comes without TLS for that reason: invalid authorization.
        body = (196608).to_bytes(4, "big") + b"user\0overproof\0database\0overproof\0\0"
        answer = processes.exchange(ports["main"], (len(body) + 4).to_bytes(4, "big") + body)
        return b"C28000" in answer
