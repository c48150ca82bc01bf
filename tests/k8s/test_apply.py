"""The API server takes what kustomize renders, under Pod Security `restricted`, and keeps it."""

from __future__ import annotations

import json

import pytest

from scripts.testcluster.cluster import Cluster
from tests.deploy.manifests import COMBINATIONS, OVERLAYS, Document, render, render_overlay

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "documents",
    [
        *(pytest.param(c, id="+".join(c)) for c in COMBINATIONS),
        *(pytest.param(name, id=name) for name in OVERLAYS),
    ],
    indirect=True,
)
def test_objects_are_taken_and_do_not_change_when_applied_again(
    cluster: Cluster, documents: list[Document]
) -> None:
    # As docs/deploy.md says: a job cannot be changed.
    cluster.kubectl("delete", "job", "migrate", "--namespace=overproof", "--ignore-not-found")

    first = cluster.apply(documents)
    second = cluster.kubectl(
        "diff", "--server-side", "--filename=-", text="\n---\n".join(map(json.dumps, documents))
    )

    assert len(first) == len(documents)
    assert [line for line in first if not line.endswith("serverside-applied")] == []
    assert second.strip() == ""


@pytest.fixture
def documents(request: pytest.FixtureRequest, cluster: Cluster) -> list[Document]:
    """A rendering, its namespace made first; without kinds of which there is no definition here."""
    what = request.param
    rendered = render_overlay(what) if isinstance(what, str) else render(what)
    rendered = [d for d in rendered if not d["apiVersion"].startswith("monitoring.coreos.com")]
    cluster.apply([d for d in render_overlay("prod") if d["kind"] == "Namespace"])
    return rendered
