"""A real API server, real controllers and the real KEDA; only for `make test-k8s`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from scripts.testcluster.cluster import Cluster, running_cluster, running_keda
from scripts.testservers.processes import ServerError


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """An empty control plane that knows KEDA's kinds."""
    if not os.environ.get("OVERPROOF_TEST_K8S"):
        pytest.skip("the suite of the cluster runs by `make test-k8s`")
    if not shutil.which("go") and os.environ.get("CI") != "true":
        pytest.skip("go is not installed, and the control plane is built from source")
    try:
        with running_cluster() as cluster:
            yield cluster
    except ServerError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def autoscaled(cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, with KEDA at work."""
    try:
        with running_keda(cluster):
            yield cluster
    except ServerError as error:
        pytest.fail(str(error))
