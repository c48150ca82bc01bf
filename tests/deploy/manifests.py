"""Renders k8s/ as an operator would, and finds what tests ask about in the result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"

WORKERS = ("distiller", "trainer", "attacker")
SERVICES = (*WORKERS, "aggregator")
# Whose pods workers are: one of these, after all others.
WAYS = ("keda", "fixed-workers")
# In the order in which they can be combined.
FEATURES = (
    "embedded-infrastructure",
    "gpu",
    "node-pools",
    "network-policies",
    "monitoring",
    "ingress",
)
COMBINATIONS = [
    (*features, way)
    for way in WAYS
    for features in ((), *((feature,) for feature in FEATURES), FEATURES)
]
OVERLAYS = ("dev", "prod")

Document = dict[str, Any]


def render_overlay(name: str) -> list[Document]:
    """What `kustomize build k8s/overlays/NAME` prints."""
    return _build(K8S / "overlays" / name)


@cache
def render(components: tuple[str, ...]) -> list[Document]:
    """The base with `components`, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "overproof",
            "resources": [os.path.relpath(K8S / "base", place)],
            "components": [os.path.relpath(K8S / "components" / c, place) for c in components],
        }
        (place / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return _build(place)


@cache
def _build(folder: Path) -> list[Document]:
    command = _kustomize()
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The loader in C: there are megabytes of it.
    return [d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d]


def _kustomize() -> list[str]:
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    pytest.skip("neither kustomize nor kubectl is installed")


def everything() -> Iterator[tuple[str, list[Document]]]:
    """Every combination and overlay, by name."""
    for components in COMBINATIONS:
        yield "+".join(components), render(components)
    for name in OVERLAYS:
        yield name, render_overlay(name)


def of_kind(documents: list[Document], *kinds: str) -> dict[str, Document]:
    """Name → document, of these kinds."""
    return {d["metadata"]["name"]: d for d in documents if d["kind"] in kinds}


def templates(documents: list[Document]) -> dict[str, Document]:
    """`Kind/name` → template of its pods, for everything that makes pods or describes them."""
    found = {}
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind in {"Deployment", "StatefulSet", "Job", "DaemonSet"}:
            found[f"{kind}/{name}"] = document["spec"]["template"]
        elif kind == "ScaledJob":
            found[f"{kind}/{name}"] = document["spec"]["jobTargetRef"]["template"]
        elif kind == "PodTemplate":
            found[f"{kind}/{name}"] = document["template"]
    return found


def containers(template: Document) -> list[Document]:
    """Init containers and containers."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def main_container(template: Document) -> Document:
    """The only container that is no init container."""
    [container] = template["spec"]["containers"]
    return dict(container)


def environment(container: Document, documents: list[Document]) -> dict[str, str]:
    """The variables of a container whose values stand in the manifests, its config maps' first."""
    maps = of_kind(documents, "ConfigMap")
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        variables |= maps[source["configMapRef"]["name"]]["data"]
    variables |= {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return variables


def image_environment(name: str) -> dict[str, str]:
    """What the ENV lines of a component's last stage set."""
    from scripts.images import FOLDERS

    text = (ROOT / FOLDERS[name] / "Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :].replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in re.findall(r"^ENV (.*)$", last, flags=re.MULTILINE):
        found |= dict(re.findall(r"(\w+)=(\S+)", line))
    return found


def entry_point(name: str) -> list[str]:
    """The command that a component's image starts."""
    from scripts.images import FOLDERS

    text = (ROOT / FOLDERS[name] / "Dockerfile").read_text()
    [found] = re.findall(r"^ENTRYPOINT (\[.*\])$", text, flags=re.MULTILINE)
    return list(json.loads(found))


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number: bytes or cores."""
    found = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi|Ti)?", str(text))
    assert found, text
    factors = {None: 1.0, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(found[1]) * factors[found[2]]


def values_of(document: Any, key: str) -> Iterator[Any]:
    """Every value that stands under `key`, however deep."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(document, list):
        for item in document:
            yield from values_of(item, key)
