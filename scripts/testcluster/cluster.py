"""A control plane of a test's own: etcd, API server, controllers and, where asked for, KEDA."""

import json
import os
import secrets
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from scripts.testservers.processes import (
    Process,
    ServerError,
    choose_free_ports,
    end,
    is_alive,
    run,
    spawn,
    wait_until,
)

from .building import ensure_etcd, ensure_keda, ensure_keda_kinds, ensure_kubernetes

START_TIMEOUT_S = 120.0
# There are no nodes but the one that tests make up, so that none is found missing.
WITHOUT_CONTROLLERS = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "node-ipam-controller",
    "cloud-node-lifecycle-controller",
)


class Cluster:
    """A running control plane, and how to talk to it.

    Args:
        folder: for data, keys and logs.
        programs: that of `ensure_kubernetes`.
        port: of the API server.
        token: of an administrator.
    """

    def __init__(self, folder: Path, programs: Path, port: int, token: str) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.port = port
        self._url = f"https://127.0.0.1:{port}"
        self._programs = programs
        self._token = token
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [
                        {
                            "name": "test",
                            "cluster": {"server": self._url, "insecure-skip-tls-verify": True},
                        }
                    ],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )

    def kubectl(self, *arguments: str | Path, text: str = "") -> str:
        """Run kubectl; its output.

        Raises:
            ServerError: it failed; with its first error.
        """
        command = [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, what=f"kubectl {arguments[0]}", answer=text)

    def apply(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        """Apply by the server's own merge; one line for each object, saying what became of it."""
        text = "\n---\n".join(json.dumps(document) for document in documents)
        answer = self.kubectl("apply", "--server-side", "--filename=-", text=text)
        return [line for line in answer.splitlines() if line.strip()]

    def get(self, path: str) -> Any:
        """The object or list at a path of the API."""
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None, *, patch: str = "merge") -> Any:
        """One call of the API.

        Args:
            method: of HTTP.
            path: below the server, with its query.
            body: sent as JSON.
            patch: kind of a PATCH: `merge` or `strategic-merge`.

        Raises:
            HTTPError: the server refuses.
        """
        kind = f"application/{patch}-patch+json" if method == "PATCH" else "application/json"
        request = Request(
            f"{self._url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind},
        )
        with urlopen(request, timeout=30, context=_trusting()) as answer:
            return json.loads(answer.read() or b"null")

    def is_ready(self) -> bool:
        """Whether the API server serves."""
        request = Request(f"{self._url}/readyz", headers={"Authorization": f"Bearer {self._token}"})
        try:
            with urlopen(request, timeout=5, context=_trusting()) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPError):
            return False


def _trusting() -> ssl.SSLContext:
    """Takes the certificate that the API server has just made for itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A new control plane on loopback that knows KEDA's kinds; gone afterwards.

    Raises:
        ServerError: a program cannot be had or does not serve.
    """
    etcd, programs = ensure_etcd(), ensure_kubernetes()
    ports = choose_free_ports()
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overproof-k8s-")))
        cluster = Cluster(folder, programs, next(ports), token)
        client, peer = next(ports), next(ports)
        _start(
            stack,
            folder,
            "etcd",
            [
                etcd,
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{client}",
                f"--advertise-client-urls=http://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",  # the tests end processes, never the machine
            ],
        )
        _make_keys(folder)
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        api = _start(
            stack,
            folder,
            "api",
            [
                programs / "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{client}",
                f"--service-account-key-file={folder / 'accounts.pub'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--token-auth-file={folder / 'tokens.csv'}",
                f"--secure-port={cluster.port}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={folder / 'certificates'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
            ],
        )
        wait_until(lambda: cluster.is_ready() or not is_alive(api), timeout_s=START_TIMEOUT_S)
        if not cluster.is_ready():
            raise ServerError(f"the API server does not serve:\n{_last_words(folder, 'api')}")
        _start(
            stack,
            folder,
            "controllers",
            [
                programs / "kube-controller-manager",
                f"--kubeconfig={cluster.kubeconfig}",
                f"--service-account-private-key-file={folder / 'accounts.key'}",
                f"--root-ca-file={folder / 'certificates/apiserver.crt'}",
                "--leader-elect=false",
                "--secure-port=0",
                f"--controllers=*,{','.join(f'-{each}' for each in WITHOUT_CONTROLLERS)}",
            ],
        )
        cluster.kubectl("apply", "--server-side", f"--filename={ensure_keda_kinds()}")
        cluster.kubectl("wait", "--for=condition=established", "customresourcedefinitions", "--all")
        yield cluster


@contextmanager
def running_keda(cluster: Cluster) -> Iterator[None]:
    """KEDA's operator beside the cluster, which knows its kinds.

    Raises:
        ServerError: it cannot be had.
    """
    keda = ensure_keda()
    ports = choose_free_ports()
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keda"}}])
    certificates = cluster.folder / "keda-certificates"
    certificates.mkdir()
    _self_signed(certificates)
    with ExitStack() as stack:
        _start(
            stack,
            cluster.folder,
            "keda",
            [
                keda / "operator",
                f"--kubeconfig={cluster.kubeconfig}",
                f"--cert-dir={certificates}",
                f"--health-probe-bind-address=127.0.0.1:{next(ports)}",
                f"--metrics-bind-address=127.0.0.1:{next(ports)}",
                f"--metrics-service-bind-address=127.0.0.1:{next(ports)}",
            ],
            POD_NAMESPACE="keda",
            POD_NAME="keda-operator",
            OPERATOR_NAME="keda-operator",
            KEDA_CLUSTER_OBJECT_NAMESPACE="keda",
            WATCH_NAMESPACE="",
        )
        yield


def _start(
    stack: ExitStack, folder: Path, name: str, command: Sequence[str | Path], **variables: str
) -> Process:
    process = spawn(
        list(command),
        log=folder / f"{name}.log",
        folder=folder,
        environment={**os.environ, **variables},
        user=None,
    )
    stack.callback(end, process, stop_signal=signal.SIGTERM)
    return process


def _last_words(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text(errors="replace")[-2000:]


def _make_keys(folder: Path) -> None:
    """The pair by which tokens of service accounts are signed."""
    private, public = folder / "accounts.key", folder / "accounts.pub"
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)


def _self_signed(folder: Path) -> None:
    """A certificate that is its own authority, under the names that KEDA looks for."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    subject = ("-subj", "/CN=keda", "-days", "2", "-nodes", "-newkey", "rsa:2048")
    _openssl("req", "-x509", *subject, "-keyout", key, "-out", certificate)
    (folder / "ca.crt").write_bytes(certificate.read_bytes())


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"openssl {arguments[0]} failed: {done.stderr[-300:]}")
