"""Models and data sets of users, described in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from overproof.catalog import manifests
from overproof.catalog.datasets import DatasetInfo
from overproof.catalog.models import ForeignModelInfo
from overproof.core.registry import Registry
from overproof.core.spec import PluginRef
from overproof.errors import DuplicatePlugin, InvalidSpec

MODEL = {
    "name": "my-resnet",
    "target": "torchvision.models:resnet34",
    "arguments": {"num_classes": "classes"},
    "params": {"zero_init_residual": False, "width_per_group": 64},
}
FLOWERS = {
    "name": "flowers",
    "classes": 2,
    "shape": [3, 8, 8],
    "mean": [0.4, 0.4, 0.4],
    "std": [0.2, 0.2, 0.2],
    "mirrors": True,
}


def _registered(path: Path, **manifest: Any) -> tuple[Registry, Registry]:
    path.write_text(yaml.safe_dump(manifest))
    models, datasets = Registry("models"), Registry("datasets")
    manifests.register(manifests.read(path), models=models, datasets=datasets)
    return models, datasets


def test_model_of_a_manifest_has_typed_parameters_with_its_defaults(tmp_path: Path) -> None:
    models, _ = _registered(tmp_path / "m.yaml", models=[MODEL])

    info = models.get("my-resnet")
    assert isinstance(info, ForeignModelInfo)
    assert info.arguments == {"num_classes": "classes"}
    canonical = models.canonical(PluginRef(name="my-resnet", params={"width_per_group": 32}))
    assert canonical.params == {"zero_init_residual": False, "width_per_group": 32}
    with pytest.raises(InvalidSpec, match="did you mean width_per_group"):
        models.resolve(PluginRef(name="my-resnet", params={"width_per_grup": 32}))


def test_data_set_of_a_manifest_has_the_facts_that_it_says(tmp_path: Path) -> None:
    _, datasets = _registered(tmp_path / "m.yaml", datasets=[FLOWERS])

    info = datasets.get("flowers")
    assert isinstance(info, DatasetInfo)
    assert (info.classes, info.shape, info.mean, info.mirrors) == (2, (3, 8, 8), (0.4,) * 3, True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"datasets": [{**FLOWERS, "classes": 0}]}, "datasets.0.classes"),
        ({"datasets": [{**FLOWERS, "mean": [0.4]}]}, "3 channels need as many means"),
        ({"datasets": [{**FLOWERS, "std": [0.2, 0.2, 0.0]}]}, "datasets.0.std.2"),
        ({"datasets": [{**FLOWERS, "class_names": ["a"]}]}, "1 class_names for 2 classes"),
        ({"datasets": [{k: v for k, v in FLOWERS.items() if k != "mirrors"}]}, "is missing"),
        ({"models": [{**MODEL, "target": "torchvision.models"}]}, "models.0.target"),
        ({"models": [{**MODEL, "arguments": {"n": "colours"}}]}, "models.0.arguments.n"),
        ({"modles": []}, "did you mean models"),
    ],
)
def test_what_is_wrong_or_missing_is_said_and_nothing_guessed(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        _registered(tmp_path / "m.yaml", **entry)


def test_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplicatePlugin, match="my-resnet"):
        _registered(tmp_path / "m.yaml", models=[MODEL, MODEL])


@pytest.mark.parametrize("content", [b"a: [", b"\xff", b"[1]"])
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.yaml").write_bytes(content)

    with pytest.raises(InvalidSpec, match=r"m\.yaml has 1 fault"):
        manifests.read(tmp_path / "m.yaml")


def test_absent_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        manifests.read(tmp_path / "absent.yaml")
    (tmp_path / "m.yaml").write_text("models: []")
    monkeypatch.setattr(manifests, "MAX_BYTES", 5)
    with pytest.raises(InvalidSpec, match="more than 5 bytes"):
        manifests.read(tmp_path / "m.yaml")
