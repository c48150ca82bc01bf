from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overproof.core.spec import DatasetSpec
from overproof.ml.datasets.base import Dataset, load
from tests.command_line import call, read_json

SPEC = """
name: brought
datasets: digits
imported: theirs
networks: [{name: convnet, params: {width: 4, depth: 2}}]
protocol: {name: dc, params: {epochs: 2}}
attacks: [{name: fgsm, epsilons: [8/255]}]
"""


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load(DatasetSpec(name="digits"), None)


@pytest.fixture
def published(tmp_path: Path, digits: Dataset) -> Path:
    """Two real digits of each class as DC's code would store them."""
    rows = torch.cat([(digits.train_labels == c).nonzero()[:2, 0] for c in range(10)])
    images = (digits.train_images[rows] / 255 - 0.3055) / 0.3760
    path = tmp_path / "res_DC_digits_ConvNet_2ipc.pt"
    torch.save({"data": [[images, digits.train_labels[rows]]], "accs_all_exps": {}}, path)
    return path


def test_imported_set_is_reported_stored_and_planned(home: Path, published: Path) -> None:
    said = call("import", "theirs", published, "--dataset", "digits", "--normalisation", "own")
    spec = published.with_name("spec.yaml")
    spec.write_text(SPEC)

    planned = read_json("plan", spec)

    assert said.stdout.splitlines()[:3] == [
        "form dc: 20 images of 1 × 8 × 8, 2 of each of 10 classes of digits",
        "labels: classes",
        "stored as normalised, values -0.8125 … 1.8471, mean 0.3055, deviation 0.376",
    ]
    assert "in specs: `imported: theirs`" in said.stdout
    assert [unit["task"] for unit in planned["units"]] == ["imported-sets", "networks", "white-box"]


def test_importing_the_same_bytes_again_changes_nothing(home: Path, published: Path) -> None:
    arguments = ("import", "theirs", published, "--dataset", "digits", "--normalisation", "own")

    first = read_json(*arguments)

    assert read_json(*arguments)["version"] == first["version"]
    assert first["facts"]["source"]["name"] == published.name
    assert len(first["facts"]["source"]["sha256"]) == 64


def test_dry_run_reports_and_stores_nothing(home: Path, published: Path) -> None:
    arguments = ("import", "theirs", published, "--dataset", "digits", "--normalisation", "own")

    assert "nothing was stored" in call(*arguments, "--dry-run").stdout
    assert read_json(*arguments, "--dry-run")["images_per_class"] == 2
    assert (
        "no imported set is called theirs"
        in call("export", "theirs", published.with_name("x"), "--format", "dc", code=2).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "flowers"), "nobody knows a data set flowers; add it by"),
        (("--dataset", "digits"), "give --normalisation (dc, mtt, imagenet, own), or --mean"),
        (("--dataset", "digits", "--space", "lab"), "none of unit, normalised, zca"),
        (("--dataset", "digits", "--mean", "a,b"), "'a,b' is no list of numbers by commas"),
        (("--dataset", "svhn"), "images of (1, 8, 8) (C, H, W), svhn of (3, 32, 32)"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    home: Path, published: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in call("import", "theirs", published, *arguments, code=2).stderr


def test_set_is_exported_and_imported_again_without_a_difference(
    home: Path, published: Path
) -> None:
    own = ("--dataset", "digits", "--normalisation", "own")
    folder = published.parent
    first = read_json("import", "theirs", published, *own)

    written = read_json("export", "theirs", folder / "again.safetensors", "--format", "safetensors")
    second = read_json("import", "again", folder / "again.safetensors", "--dataset", "digits")

    assert written["images"] == 20
    assert second["version"] == first["version"]
    again = read_json("import", "theirs", folder / "again.safetensors", "--dataset", "digits")
    assert again["facts"]["form"] == "safetensors"  # what was said last of the same bytes


def test_mean_and_deviation_can_be_given_by_number(home: Path, published: Path) -> None:
    own = read_json("import", "a", published, "--dataset", "digits", "--normalisation", "own")
    given = read_json(
        "import", "b", published, "--dataset", "digits", "--mean", "0.3055", "--std", "0.3760"
    )

    assert own["version"] == given["version"]


def test_transform_is_fitted_to_the_training_images(
    home: Path, tmp_path: Path, digits: Dataset
) -> None:
    train = digits.train_images.flatten(1).double() / 255
    centred = train - train.mean(dim=0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / (len(train) - 1))
    white = centred @ ((vectors * (values + 0.1) ** -0.5) @ vectors.T)
    rows = torch.cat([(digits.train_labels == c).nonzero()[:1, 0] for c in range(10)])
    torch.save(white[rows].float().view(-1, 1, 8, 8), tmp_path / "images_best.pt")
    torch.save(torch.arange(10), tmp_path / "labels_best.pt")

    arguments = ("import", "white", tmp_path, "--dataset", "digits", "--space", "zca", "--json")
    call(*arguments[:-1], code=2)
    facts = read_json(*arguments[:-1], "--zca", "fit")["facts"]

    assert facts["pixels"] == pytest.approx([0, 1], abs=1e-3)


def test_unit_that_is_not_made_or_is_no_set_cannot_be_exported(home: Path, published: Path) -> None:
    call("import", "theirs", published, "--dataset", "digits", "--normalisation", "own")
    spec = published.with_name("spec.yaml")
    spec.write_text(SPEC)
    units = read_json("plan", spec)["units"]
    call("submit", spec)
    into = published.with_name("out")

    said = call("export", units[0]["id"], into, "--format", "dc", code=2).stderr

    assert "is not yet made" in said
