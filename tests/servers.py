"""Servers of a test's own: to be stopped under it, or with settings that others do not have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scripts.testservers.native import Server
from scripts.testservers.own import OwnServer, own_server


@contextmanager
def serving(server: Server) -> Iterator[OwnServer]:
    """The server on free loopback ports; gone with its data afterwards.

    A test skips where the program is not installed; with CI=true it is installed, or the test
    fails.
    """
    if os.environ.get("CI") != "true" and not server.is_installed():
        pytest.skip(f"{server.name} is not installed; `make servers-up` gets it")
    with own_server(server) as own:
        yield own
