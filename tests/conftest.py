"""What all tests share: no network beyond loopback, and servers that must be there in CI."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from pytest_socket import socket_allow_hosts


@pytest.fixture(autouse=True)
def _loopback_only() -> None:
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


@pytest.fixture(scope="session", autouse=True)
def _home_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test that names no home folder must not work in the one of whoever runs it."""
    os.environ["OVERPROOF_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def server_url() -> Callable[[str], str]:
    """URL of a real server, by name: KAFKA, S3, S3_SECOND, POSTGRES.

    Without it a test skips, and says how to start the servers; with CI=true it fails.
    """

    def url(name: str) -> str:
        variable = f"OVERPROOF_TEST_{name}_URL"
        value = os.environ.get(variable, "")
        if not value:
            message = f"{variable} is not set; start the servers with `make servers-up`"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
        return value

    return url
