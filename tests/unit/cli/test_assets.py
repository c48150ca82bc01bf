from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from overproof.core.refs import ArtifactRef
from overproof.runtime.wiring import Backends
from tests.command_line import SPEC, call, read_json


@pytest.fixture
def images(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    np.savez(
        path,
        x_train=random.integers(0, 256, (8, 8, 8, 1), dtype=np.uint8),
        y_train=np.arange(8) % 2,
        x_test=random.integers(0, 256, (4, 8, 8, 1), dtype=np.uint8),
        y_test=np.arange(4) % 2,
    )
    return path


def test_added_data_set_can_be_planned_with_its_hash_as_version(
    home: Path, images: Path, spec: Path
) -> None:
    added = read_json("data", "add", "mine", images)
    spec.write_text(SPEC.replace("digits", "mine"))

    planned = read_json("plan", spec)

    assert planned["units"][0]["body"]["dataset"]["version"] == added["version"]
    assert added["version"] == added["ref"]["sha256"]
    assert [each["name"] for each in read_json("data", "list")] == ["mine"]
    assert "training_images 8" in call("data", "list").stdout


def test_adding_the_same_bytes_again_changes_nothing(home: Path, images: Path) -> None:
    first = read_json("data", "add", "mine", images)

    assert read_json("data", "add", "mine", images)["version"] == first["version"]
    assert len(read_json("data", "list")) == 1


@pytest.mark.parametrize("name", ["../mine", "", "a b", ".hidden"])
def test_name_that_no_spec_could_use_is_refused(home: Path, images: Path, name: str) -> None:
    assert "is no name" in call("data", "add", name, images, code=2).stderr
    assert read_json("data", "list") == []


def test_data_that_is_not_there_is_wrong_use(home: Path, tmp_path: Path) -> None:
    assert "does not exist" in call("data", "add", "mine", tmp_path / "absent", code=2).stderr


def test_weights_are_stored_as_tensors_only(home: Path, backends: Backends, tmp_path: Path) -> None:
    torch.save({"state_dict": {"layer.weight": torch.ones(2, 3)}}, tmp_path / "w.pt")

    added = read_json("weights", "add", "victim", tmp_path / "w.pt")

    path = backends.store.fetch(ArtifactRef.model_validate(added["ref"]), tmp_path / "fetched")
    assert load_file(path)["layer.weight"].tolist() == [[1.0] * 3] * 2
    assert added["facts"] == {"tensors": 1, "parameters": 6}


def test_weights_that_hold_code_are_refused(home: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": Path("/tmp")}}, tmp_path / "w.pt")

    assert "overproof: " in call("weights", "add", "victim", tmp_path / "w.pt", code=2).stderr
