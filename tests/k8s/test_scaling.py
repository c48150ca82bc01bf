"""Workers follow the work: the real KEDA, Job controller and services, a kubelet of our own."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind, JobState
from scripts.testcluster.cluster import Cluster
from tests.deploy.manifests import Document, render, render_overlay
from tests.e2e.deployment import Deployment, cluster_deployment, counting_unit, succeeded, wait_for
from tests.k8s.kubelet import Kubelet

pytestmark = [
    pytest.mark.k8s,
    pytest.mark.kafka,
    pytest.mark.s3,
    pytest.mark.postgres,
    pytest.mark.timeout(600),
]

NAMESPACE = "overproof"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# What the test's tasks need, and times that suit a test rather than a cluster.
QUICK = {
    "OVERPROOF_PLUGINS": "tests.e2e.plugins:register",
    "OVERPROOF_PRELOAD": "none",
    "OVERPROOF_DEVICE": "cpu",
    "OVERPROOF_THREADS": "1",
    "OVERPROOF_AGGREGATE_S": "1",
    "OVERPROOF_CHECKPOINT_EVERY_S": "0.2",
    "OVERPROOF_RENEW_S": "0.5",
}
IDLE_EXIT_S = 5.0
POLLING_S = 10.0
MAXIMUM = 4
READER = "overproof_scaler"


@dataclass
class Installed:
    """Overproof in the cluster, its database, and the node that runs its pods."""

    cluster: Cluster
    deployment: Deployment
    kubelet: Kubelet

    def pods(self, name: str, *phases: str) -> list[Document]:
        """Pods of a component, in these phases; those that are being deleted left out."""
        found = self.cluster.get(f"{PODS}?labelSelector=app.kubernetes.io%2Fname%3D{name}")["items"]
        return [
            pod
            for pod in found
            if pod["status"]["phase"] in phases and "deletionTimestamp" not in pod["metadata"]
        ]

    def wait(self, condition: Callable[[], bool], within_s: float) -> None:
        """Return once `condition` holds; a failure shows all logs."""
        wait_for(condition, within_s=within_s, otherwise=self.kubelet.logs)

    def running(self, experiment: ExperimentId) -> int:
        """How many of its jobs run."""
        return sum(job.state is JobState.RUNNING for job in self.deployment.jobs(experiment))


@pytest.fixture
def installed(
    autoscaled: Cluster, tmp_path: Path, server_url: Callable[[str], str]
) -> Iterator[Installed]:
    cluster = autoscaled
    with (
        reader_role(server_url("POSTGRES")),
        cluster_deployment(tmp_path, server_url) as deployment,
    ):
        namespace = [d for d in render_overlay("prod") if d["kind"] == "Namespace"]
        cluster.apply(namespace)
        cluster.apply(secrets_of(deployment))
        in_namespace = f"--namespace={NAMESPACE}"
        cluster.kubectl("delete", "job", "migrate", in_namespace, "--ignore-not-found")
        cluster.apply(settled(render(("keda",)), deployment))
        (tmp_path / "node").mkdir()
        kubelet = Kubelet(cluster, NAMESPACE, tmp_path / "node", QUICK)
        try:
            yield Installed(cluster, deployment, kubelet)
        finally:
            kubelet.close()
            for kind in ("scaledjobs", "jobs", "deployments", "pods"):
                cluster.kubectl("delete", kind, "--all", in_namespace, "--force", "--wait=false")


@contextmanager
def reader_role(server: str) -> Iterator[None]:
    """The role of the autoscaler, which the job `migrate` gives its right."""
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with admin.connect() as connection:
            connection.execute(text(f"DROP ROLE IF EXISTS {READER}"))
            connection.execute(text(f"CREATE ROLE {READER} LOGIN PASSWORD 'reads'"))
        yield
        with admin.connect() as connection:
            connection.execute(text(f"DROP ROLE {READER}"))
    finally:
        admin.dispose()


def secrets_of(deployment: Deployment) -> list[Document]:
    """The secrets that an operator makes, with the addresses of the test's servers."""
    url = make_url(deployment.environment["OVERPROOF_DATABASE_URL"])
    values = {
        "overproof-database": {"url": url.render_as_string(hide_password=False)},
        "overproof-s3": {
            "access-key": os.environ["AWS_ACCESS_KEY_ID"],
            "secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        },
        "overproof-scaler": {
            "host": str(url.host),
            "port": str(url.port),
            "database": str(url.database),
            "user": READER,
            "password": "reads",
            "sslmode": "disable",
        },
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": data,
        }
        for name, data in values.items()
    ]


def settled(documents: list[Document], deployment: Deployment) -> list[Document]:
    """The manifests with what an operator sets: addresses, a maximum, times that suit a test."""
    mine = copy.deepcopy(documents)
    for document in mine:
        if document["kind"] == "ConfigMap" and "OVERPROOF_BUS_URL" in document["data"]:
            for name in ("OVERPROOF_BUS_URL", "OVERPROOF_ARTIFACTS_URL"):
                document["data"][name] = deployment.environment[name]
        if document["kind"] == "ScaledJob":
            document["spec"]["maxReplicaCount"] = MAXIMUM
            template = document["spec"]["jobTargetRef"]["template"]
            for variable in template["spec"]["containers"][0]["env"]:
                if variable["name"] == "OVERPROOF_IDLE_EXIT_S":
                    variable["value"] = str(IDLE_EXIT_S)
        if document["metadata"]["name"] == "dashboard" and document["kind"] == "Deployment":
            document["spec"]["replicas"] = 0  # two of them would share a port here
    return mine


def test_workers_start_for_work_never_above_the_maximum_and_end_without_it(
    installed: Installed,
) -> None:
    deployment = installed.deployment
    installed.wait(lambda: bool(installed.pods("migrate", "Succeeded")), within_s=60)
    time.sleep(2 * POLLING_S)
    assert installed.pods("distiller", "Pending", "Running") == []

    units = [counting_unit(number, steps=200, step_s=0.1) for number in range(3)]
    experiment = deployment.submit(units).experiment_id
    installed.wait(lambda: installed.running(experiment) == 3, within_s=2 * POLLING_S + 20)
    assert len(installed.pods("distiller", "Pending", "Running")) == 3

    more = [counting_unit(number, steps=20, step_s=0.1) for number in range(10, 20)]
    second = deployment.submit(more).experiment_id
    most = 0
    while not all(job.state.is_terminal for job in deployment.jobs(second)):
        most = max(most, len(installed.pods("distiller", "Pending", "Running")))
        time.sleep(1)
    assert most == MAXIMUM

    jobs = deployment.wait_finished(experiment)
    installed.wait(lambda: not installed.pods("distiller", "Pending", "Running"), within_s=60)
    assert succeeded(jobs)
    assert succeeded(deployment.jobs(second))
    assert {job.attempt for job in jobs} == {1}


def test_a_paused_kind_starts_no_pod(installed: Installed) -> None:
    repository = installed.deployment.backends.repository
    repository.pause(JobKind.DISTILL)
    experiment = installed.deployment.submit([counting_unit(1)]).experiment_id

    time.sleep(3 * POLLING_S)
    assert installed.pods("distiller", "Pending", "Running", "Succeeded") == []

    repository.resume(JobKind.DISTILL)
    assert succeeded(installed.deployment.wait_finished(experiment))


def test_an_evicted_pod_loses_neither_work_nor_an_attempt(installed: Installed) -> None:
    deployment = installed.deployment
    experiment = deployment.submit([counting_unit(1, steps=150, step_s=0.1)]).experiment_id
    installed.wait(
        lambda: any(job.progress and job.progress.step > 20 for job in deployment.jobs(experiment)),
        within_s=60,
    )
    [pod] = installed.pods("distiller", "Running")
    name = pod["metadata"]["name"]

    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    installed.cluster.request("POST", f"{PODS}/{name}/eviction", body)
    [job] = deployment.wait_finished(experiment)

    attempts = deployment.backends.repository.attempts(job.job_id)
    assert job.state is JobState.SUCCEEDED
    assert job.attempt == 1
    assert [attempt.outcome for attempt in attempts] == ["released", "succeeded"]
    assert attempts[1].facts["resumed_at"] > 0


def test_a_killed_pod_is_replaced_and_its_job_resumes(installed: Installed) -> None:
    deployment = installed.deployment
    experiment = deployment.submit([counting_unit(1, steps=150, step_s=0.1)]).experiment_id
    installed.wait(
        lambda: any(job.progress and job.progress.step > 20 for job in deployment.jobs(experiment)),
        within_s=60,
    )
    [pod] = installed.pods("distiller", "Running")

    installed.kubelet.process_of(pod["metadata"]["name"]).kill()
    [job] = deployment.wait_finished(experiment, within_s=240)

    assert job.state is JobState.SUCCEEDED
    assert job.attempt == 2
