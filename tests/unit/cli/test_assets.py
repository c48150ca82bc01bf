from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from overproof.core.refs import ArtifactRef
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.datasets.base import load
from overproof.ml.models.base import build
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


def test_what_was_read_of_a_data_set_is_said(home: Path, images: Path) -> None:
    said = call("data", "add", "mine", images).stdout

    assert said.startswith("8 training and 4 test images of 1 × 8 × 8, 2 classes, mean [0.")


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


CONVNET = "{name: convnet, params: {width: 4, depth: 2}}"
FOR_DIGITS = ("--network", CONVNET, "--dataset", "digits")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A network for digits as another code base might save it."""
    facts = load(DatasetSpec(name="digits"), None).facts
    network = build(PluginRef(name="convnet", params={"width": 4, "depth": 2}), facts, 0).network
    state = {f"module.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "net.pt")
    return tmp_path / "net.pt"


def test_weights_are_stored_with_the_network_and_its_normalisation(
    home: Path, backends: Backends, checkpoint: Path, tmp_path: Path
) -> None:
    added = read_json("weights", "add", "mine", checkpoint, *FOR_DIGITS, "--normalisation", "own")

    path = backends.store.fetch(ArtifactRef.model_validate(added["ref"]), tmp_path / "fetched")
    tensors = load_file(path)
    assert tensors["mean"].flatten().tolist() == pytest.approx([0.3055])
    assert tensors["network.classifier.weight"].shape == (10, 16)
    assert added["facts"]["dataset"] == "digits"
    assert added["facts"]["network"]["params"]["width"] == 4
    assert added["facts"]["notes"] == [
        "taken from state_dict",
        "the prefix module. was dropped",
    ]
    assert [each["name"] for each in read_json("weights", "list")] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--network", "convnett", "--dataset", "digits"), "did you mean convnet"),
        (("--network", "{name: [", "--dataset", "digits"), "is no YAML"),
        (("--network", "{size: 3}", "--dataset", "digits"), "--network has"),
        (("--network", CONVNET, "--dataset", "flowers"), "nobody knows a data set flowers"),
        (("--network", "convnet", "--dataset", "digits"), "do not fit the network"),
        (FOR_DIGITS, "nobody knows by what mean and deviation for digits"),
    ],
)
def test_weights_that_nobody_can_use_are_refused(
    home: Path, checkpoint: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in call("weights", "add", "mine", checkpoint, *arguments, code=2).stderr
    assert read_json("weights", "list") == []


def test_weights_that_hold_code_are_refused(home: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": Path("/tmp")}}, tmp_path / "w.pt")

    said = call("weights", "add", "victim", tmp_path / "w.pt", *FOR_DIGITS, code=2).stderr

    assert said.startswith("overproof: weights ")
    assert "holds Python objects and was not loaded" in said
