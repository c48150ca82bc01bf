"""Getting the programs: etcd from Debian, everything else from source through Go modules.

Built once, into the cache that all checkouts share (see `testservers.places`). Two cores take some
eight minutes.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from scripts.testservers.installing import ensure_cached, ensure_debian_packages, ensure_go
from scripts.testservers.processes import ServerError, run

KUBERNETES_VERSION = "1.34.2"
KEDA_VERSION = "2.18.0"

KUBERNETES = f"kubernetes-{KUBERNETES_VERSION}"
KEDA = f"keda-{KEDA_VERSION}"
KEDA_KINDS = f"keda-kinds-{KEDA_VERSION}"
KEDA_MODULE = "github.com/kedacore/keda/v2"
KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubectl")

# Kubernetes is written as if these were modules of their own, and publishes them so.
STAGING = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
]


def ensure_etcd() -> Path:
    """The etcd program."""
    if not shutil.which("etcd"):
        ensure_debian_packages("etcd-server")
    found = shutil.which("etcd")
    if found is None:
        raise ServerError("no etcd on the path after installing etcd-server")
    return Path(found)


def ensure_kubernetes() -> Path:
    """The folder of `KUBERNETES_PROGRAMS`."""

    def build(folder: Path) -> None:
        minor = KUBERNETES_VERSION.split(".")[1]
        replaced = [
            f"replace k8s.io/{name} => k8s.io/{name} v0.{KUBERNETES_VERSION.partition('.')[2]}"
            for name in STAGING
        ]
        # Without a version of its own it calls itself v0.0.0, and clients refuse or warn.
        stamped = " ".join(
            f"-X k8s.io/{package}.{name}={value}"
            for package in ("component-base/version", "client-go/pkg/version")
            for name, value in [
                ("gitVersion", f"v{KUBERNETES_VERSION}"),
                ("gitMajor", "1"),
                ("gitMinor", minor),
            ]
        )
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS]
        requirement = f"k8s.io/kubernetes v{KUBERNETES_VERSION}"
        _build_module(folder, requirement, replaced, packages, flags=f"-s -w {stamped}")

    return ensure_cached(KUBERNETES, build)


def ensure_keda() -> Path:
    """The folder of KEDA's program `operator`."""

    def build(folder: Path) -> None:
        replaced = list(
            _replacements((_download(KEDA_MODULE, KEDA_VERSION) / "go.mod").read_text())
        )
        requirement = f"{KEDA_MODULE} v{KEDA_VERSION}"
        _build_module(folder, requirement, replaced, [f"{KEDA_MODULE}/cmd/operator"], flags="-s -w")

    return ensure_cached(KEDA, build)


def ensure_keda_kinds() -> Path:
    """The folder of the definitions of KEDA's kinds; nothing is compiled."""

    def build(folder: Path) -> None:
        for file in (_download(KEDA_MODULE, KEDA_VERSION) / "config/crd/bases").glob("*.yaml"):
            shutil.copy(file, folder)

    return ensure_cached(KEDA_KINDS, build)


def _build_module(
    folder: Path, requirement: str, replaced: list[str], packages: list[str], *, flags: str
) -> None:
    """Builds main packages of a module, in a module of ours that requires it."""
    source = folder / "source"
    source.mkdir()
    lines = ["module overproof.test/programs", "", "go 1.24", "", f"require {requirement}", ""]
    (source / "go.mod").write_text("\n".join([*lines, *replaced]) + "\n")
    # Never compiled, since no program may be imported; it tells `go mod tidy` what is needed.
    imports = "\n".join(f'import _ "{package}"' for package in packages)
    (source / "programs.go").write_text(f"//go:build programs\n\npackage programs\n\n{imports}\n")
    _go(["mod", "tidy"], source, "resolving modules")
    _go(["build", f"-ldflags={flags}", "-o", str(folder), *packages], source, "building programs")
    shutil.rmtree(source)


def _download(module: str, version: str) -> Path:
    """The folder of a module's source, read-only."""
    answer = _go(["mod", "download", "-json", f"{module}@v{version}"], None, f"fetching {module}")
    # What it says of its progress comes before the answer.
    return Path(json.loads(answer[answer.index("{") :])["Dir"])


def _replacements(module_file: str) -> Iterator[str]:
    """The replace directives of a go.mod: Go heeds those of the main module alone."""
    inside = False
    for line in module_file.splitlines():
        text = re.sub(r"\s*//.*$", "", line).strip()
        if text == "replace (":
            inside = True
        elif text == ")":
            inside = False
        elif inside and text:
            yield f"replace {text}"
        elif text.startswith("replace "):
            yield text


def _go(arguments: list[str], folder: Path | None, what: str) -> str:
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=mod" if folder else os.environ.get("GOFLAGS", "")
    environment = {"GOFLAGS": flags.strip(), "CGO_ENABLED": "0"}
    return run([ensure_go(), *arguments], what=what, folder=folder, environment=environment)
