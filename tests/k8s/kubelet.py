"""A node of one machine: pods of our images run as processes, others stay pending.

It does what a kubelet does to a pod, as far as Overproof relies on it: takes it, runs its init
containers and then its container with the variables that it was given, tells the API server of
phase, readiness and exit code, and on deletion sends SIGTERM, then SIGKILL when the grace is over.
A pod has a loopback address and a folder of its own in place of a network and of volumes.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from scripts.testcluster.cluster import Cluster
from tests.deploy.manifests import ROOT, entry_point, image_environment, quantity

NODE = "machine"
_TURN_S = 0.2
_PROBE_EVERY_S = 1.0

Document = dict[str, Any]


@dataclass
class _Pod:
    """A pod that was taken, and its process."""

    name: str
    uid: str
    folder: Path
    address: str
    waiting: list[Document]  # containers that have not started yet, the main one last
    container: Document  # the one that runs, or the main one before any does
    process: subprocess.Popen[bytes] | None = None
    is_ready: bool = False
    probed_at: float = 0.0
    kill_at: float | None = None
    is_over: bool = False


class Kubelet:
    """Runs the pods of one namespace until `close`.

    Args:
        cluster: where pods come from.
        namespace: of the pods.
        folder: for their folders and logs.
        over: variables that every process gets instead of its own: addresses of test servers.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, folder: Path, over: Mapping[str, str]
    ) -> None:
        self._cluster = cluster
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace = namespace
        self._folder = folder
        self._over = dict(over)
        self._pods: dict[str, _Pod] = {}
        self._addresses = iter(range(2, 250 * 250))
        self._stop = threading.Event()
        self._register_node()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self._thread.start()

    def close(self) -> None:
        """Kill every process; the API server is told nothing more."""
        self._stop.set()
        self._thread.join()
        for pod in self._pods.values():
            self._kill(pod)

    def process_of(self, name: str) -> subprocess.Popen[bytes]:
        """The process of the pod `name`, to be killed under it."""
        [found] = [pod.process for pod in self._pods.values() if pod.name == name]
        assert found is not None
        return found

    def logs(self) -> str:
        """The ends of all logs, for the message of a test that waited in vain."""
        parts = [
            f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
            for log in sorted(self._folder.glob("*.log"))
        ]
        return "\n".join(parts)

    # ---- the loop ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(_TURN_S):
            with suppress(OSError):  # the API server may be restarted under it
                found = self._cluster.get(self._pods_path)["items"]
                for pod in found:
                    self._look_at(pod)
                for uid in set(self._pods) - {pod["metadata"]["uid"] for pod in found}:
                    self._kill(self._pods.pop(uid))  # deleted by force

    def _look_at(self, document: Document) -> None:
        metadata = document["metadata"]
        pod = self._pods.get(metadata["uid"])
        if pod is None:
            if metadata.get("deletionTimestamp") or not self._is_ours(document):
                return
            pod = self._take(document)
        if metadata.get("deletionTimestamp"):
            self._end(pod, metadata.get("deletionGracePeriodSeconds", 30))
        self._go_on(pod, document)

    def _is_ours(self, document: Document) -> bool:
        image: str = document["spec"]["containers"][0]["image"]
        return image.rpartition("/")[2].startswith("overproof-") and "minio" not in image

    def _take(self, document: Document) -> _Pod:
        metadata, spec = document["metadata"], document["spec"]
        number = next(self._addresses)
        folder = self._folder / metadata["name"]
        folder.mkdir()
        [main] = spec["containers"]
        pod = _Pod(
            name=metadata["name"],
            uid=metadata["uid"],
            folder=folder,
            address=f"127.1.{number // 250}.{number % 250 + 1}",
            waiting=[*spec.get("initContainers", []), main],
            container=main,
        )
        self._pods[pod.uid] = pod
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}}
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        self._cluster.request(
            "POST", f"{self._pods_path}/{pod.name}/binding", {**binding, "target": target}
        )
        return pod

    def _go_on(self, pod: _Pod, document: Document) -> None:
        if pod.is_over:
            return
        now = time.monotonic()
        if pod.kill_at is not None and now >= pod.kill_at:
            self._kill(pod)
        code = pod.process.poll() if pod.process else 0
        if code is None:
            if now - pod.probed_at >= _PROBE_EVERY_S and not pod.waiting:
                pod.probed_at = now
                ready = self._probe(pod)
                if ready != pod.is_ready:
                    pod.is_ready = ready
                    self._report(pod, "Running", ready=ready)
            return
        if code == 0 and pod.waiting and pod.kill_at is None:
            self._start(pod, pod.waiting.pop(0), document)
            self._report(pod, "Pending" if pod.waiting else "Running", ready=False)
            return
        self._finish(pod, code, document)

    def _finish(self, pod: _Pod, code: int, document: Document) -> None:
        is_deleted = document["metadata"].get("deletionTimestamp")
        if document["spec"]["restartPolicy"] == "Always" and not is_deleted:
            self._start(pod, pod.container, document)
            return
        pod.is_over = True
        code = 128 - code if code < 0 else code
        self._report(pod, "Failed" if code else "Succeeded", ready=False, code=code)
        if is_deleted:
            path = f"{self._pods_path}/{pod.name}"
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
            with suppress(HTTPError):
                self._cluster.request("DELETE", path, body)

    # ---- processes ---------------------------------------------------------------------------

    def _start(self, pod: _Pod, container: Document, document: Document) -> None:
        component = container["image"].rpartition("/")[2].partition(":")[0].partition("-")[2]
        command = container.get("command") or entry_point(component)
        known = {"python": [sys.executable], "overproof": [sys.executable, "-m", "overproof"]}
        inside = image_environment(component)
        told = {**inside, **self._environment(container)}
        told = {
            name: value.replace(inside["OVERPROOF_HOME"], str(pod.folder))
            for name, value in told.items()
        }
        pod.container = container
        with (self._folder / f"{pod.name}.log").open("ab") as log:
            pod.process = subprocess.Popen(
                [*known[command[0]], *command[1:]],
                cwd=ROOT,
                env={
                    **told,
                    **self._over,
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "OVERPROOF_METRICS_HOST": pod.address,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, container: Document) -> dict[str, str]:
        """Every variable of the container, looked up where it points to."""
        variables: dict[str, str] = {}
        for source in container.get("envFrom", []):
            variables |= self._data("configmaps", source["configMapRef"]["name"]) or {}
        for each in container.get("env", []):
            value = each.get("value")
            origin = each.get("valueFrom", {})
            if reference := origin.get("secretKeyRef"):
                encoded = (self._data("secrets", reference["name"]) or {}).get(reference["key"])
                value = base64.b64decode(encoded).decode() if encoded else None
            elif reference := origin.get("resourceFieldRef"):
                kind, _, name = reference["resource"].partition(".")
                value = str(max(1, round(quantity(container["resources"][kind][name]))))
            if value is not None:
                variables[each["name"]] = value
        return variables

    def _data(self, kind: str, name: str) -> dict[str, str] | None:
        with suppress(HTTPError):
            path = f"/api/v1/namespaces/{self._namespace}/{kind}/{name}"
            found: dict[str, str] = self._cluster.get(path).get("data", {})
            return found
        return None

    def _end(self, pod: _Pod, grace_s: float) -> None:
        if pod.kill_at is None:
            pod.kill_at = time.monotonic() + grace_s
            if pod.process is not None and pod.process.poll() is None:
                pod.process.send_signal(signal.SIGTERM)

    def _kill(self, pod: _Pod) -> None:
        if pod.process is not None and pod.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(pod.process.pid, signal.SIGKILL)
            pod.process.wait()
        shutil.rmtree(pod.folder, ignore_errors=True)

    def _probe(self, pod: _Pod) -> bool:
        probe = pod.container.get("readinessProbe", {}).get("httpGet")
        if probe is None:
            return True
        ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
        url = f"http://{pod.address}:{ports[probe['port']]}{probe['path']}"
        try:
            with urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # ---- the API server ----------------------------------------------------------------------

    def _report(self, pod: _Pod, phase: str, *, ready: bool, code: int | None = None) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state: Document = {"running": {"startedAt": now}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}
        status = {
            "phase": phase,
            "podIP": pod.address,
            "startTime": now,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": pod.container["name"],
                    "image": pod.container["image"],
                    "imageID": "",
                    "ready": ready,
                    "started": code is None,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        with suppress(HTTPError):
            self._cluster.request(
                "PATCH",
                f"{self._pods_path}/{pod.name}/status",
                {"status": status},
                patch="strategic-merge",
            )

    def _register_node(self) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        with suppress(HTTPError):
            self._cluster.request("POST", "/api/v1/nodes", node)
