"""The same servers from docker-compose.yml, where a working Docker engine is at hand."""

import functools
import os
import shutil
import subprocess

from . import native, places
from .processes import ServerError

PORT_VARIABLES = {
    "kafka": "OVERPROOF_KAFKA_PORT",
    "s3": "OVERPROOF_S3_PORT",
    "postgres": "OVERPROOF_POSTGRES_PORT",
}


@functools.cache
def is_available() -> bool:
    """Whether an engine answers and its compose plugin is there."""
    if not shutil.which("docker"):
        return False
    return all(
        subprocess.run(command, capture_output=True, check=False).returncode == 0
        for command in (["docker", "compose", "version"], ["docker", "info"])
    )


def start(service: str, port: int) -> None:
    """Starts one service on a loopback port and waits until it is healthy."""
    _compose(["up", "-d", "--wait", service], service, port)
    if service == "s3":
        _compose(["run", "--rm", "-T", "s3-bucket"], service, port)


def is_running(service: str) -> bool:
    """Whether the container of the service runs."""
    return bool(_compose(["ps", "--status", "running", "-q", service], service).strip())


def stop(service: str) -> None:
    """Stops the service and keeps its data."""
    _compose(["stop", service], service)


def remove(service: str) -> None:
    """Stops the service and deletes its data."""
    _compose(["rm", "--stop", "--force", "--volumes", service], service)


def _compose(arguments: list[str], service: str, port: int = 0) -> str:
    user, secret = native.s3_credentials()
    options = ["-p", f"overproof-test-{places.checkout_id()}"]
    options += ["-f", str(places.ROOT / "docker-compose.yml")]
    done = subprocess.run(
        ["docker", "compose", *options, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            PORT_VARIABLES[service]: str(port),
            "OVERPROOF_S3_BUCKET": native.BUCKET,
            "OVERPROOF_S3_ACCESS_KEY": user,
            "OVERPROOF_S3_SECRET_KEY": secret,
            "OVERPROOF_POSTGRES_AUTH": "trust",
        },
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise ServerError(f"docker compose {arguments[0]} {service} failed: {lines[-1]}")
    return done.stdout
