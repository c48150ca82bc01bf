from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overproof.runtime.plugins import load_plugins
from tests.e2e.deployment import Deployment, cluster_deployment, embedded_deployment


@pytest.fixture(scope="session", autouse=True)
def _counting_tasks() -> None:
    load_plugins(["tests.e2e.plugins:register"])


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Deployment]:
    with embedded_deployment(tmp_path) as deployment:
        yield deployment


@pytest.fixture
def cluster(tmp_path: Path, server_url: Callable[[str], str]) -> Iterator[Deployment]:
    with cluster_deployment(tmp_path, server_url) as deployment:
        yield deployment
