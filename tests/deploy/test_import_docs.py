"""docs/import.md as a new user follows it: sets in every form, from real digits, to a report."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from overproof.catalog import manifests
from overproof.core.registry import Registry
from overproof.core.spec import DatasetSpec, ExperimentSpec, PluginRef
from overproof.ml.augment.zca import Whitening
from overproof.ml.datasets.base import load
from overproof.ml.formats.forms import FORMS
from overproof.ml.formats.spaces import CONVENTIONS
from overproof.ml.models.base import build
from tests.command_line import call, read_json
from tests.deploy.test_docs import ROOT, blocks
from tests.ml.formats.published import D4M, RDED, SRE2L

DOCUMENT = ROOT / "docs" / "import.md"
CPU = torch.device("cpu")


def typed() -> list[str]:
    """Every command of the document, in order."""
    lines = [line for block in blocks(DOCUMENT, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines]


def write_images(
    folder: Path, pattern: str, images: Tensor, labels: Tensor, scale: int = 1
) -> None:
    counts = [0] * 10
    for image, label in zip(images, labels.tolist(), strict=True):
        path = folder / pattern.format(c=label, i=counts[label])
        counts[label] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        levels = image[0].mul(255).round().byte().repeat_interleave(scale, 0)
        Image.fromarray(levels.repeat_interleave(scale, 1).numpy()).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All files that the document names, made of the first two digits of each class."""
    digits = load(DatasetSpec(name="digits"), None)
    rows = torch.cat([(digits.train_labels == c).nonzero()[:2, 0] for c in range(10)])
    pixels, labels = digits.train_images[rows].float() / 255, digits.train_labels[rows]
    images = (pixels - digits.mean[0]) / digits.std[0]

    torch.save({"data": [[images, labels]], "accs_all_exps": {}}, tmp_path / "res_DC_digits.pt")
    for name in ("mtt-run", "datm-run", "conv3in_factor2_ipc2", "aug_True"):
        (tmp_path / name).mkdir()
    torch.save(images, tmp_path / "mtt-run" / "images_best.pt")
    torch.save(labels, tmp_path / "mtt-run" / "labels_best.pt")
    whitening = Whitening.fit(digits.train_images, CPU)
    white = ((pixels - whitening.mean).flatten(1) @ whitening.matrix).view_as(pixels)
    torch.save(white, tmp_path / "datm-run" / "images_best.pt")
    soft = 5.0 * torch.nn.functional.one_hot(labels, 10)
    torch.save(soft, tmp_path / "datm-run" / "labels_best.pt")
    torch.save(torch.tensor(0.02), tmp_path / "datm-run" / "lr_best.pt")
    torch.save([pixels, labels], tmp_path / "conv3in_factor2_ipc2" / "data.pt")
    torch.save((images, labels), tmp_path / "aug_True" / "acc_0.5.pkl")
    torch.save([(images, labels, torch.tensor(0.02))], tmp_path / "results.pth")
    torch.save(images, tmp_path / "DIGITS_IPC2_normalize_images.pt")
    torch.save(labels.float(), tmp_path / "DIGITS_IPC2_normalize_labels.pt")
    write_images(tmp_path / "sre2l-images", SRE2L, pixels, labels)
    write_images(tmp_path / "rded-images", RDED, pixels, labels)
    write_images(tmp_path / "d4m-images", D4M, pixels, labels, scale=28)
    np.savez(tmp_path / "set.npz", images=pixels.numpy(), labels=labels.numpy())
    network = build(PluginRef(name="convnet", params={"width": 8, "depth": 2}), digits.facts, 0)
    torch.save({"state_dict": network.network.state_dict()}, tmp_path / "checkpoint.pt")
    write_views(tmp_path / "fkd", len(pixels), epochs=2)
    names = ("brought", "replayed", "attacked", "mine")
    for name, block in zip(names, blocks(DOCUMENT, "yaml"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(block)
    return tmp_path


def write_views(folder: Path, count: int, epochs: int) -> None:
    """Labels of whole images, not mixed, in batches of ten."""
    for epoch in range(epochs):
        (folder / f"epoch_{epoch}").mkdir(parents=True)
        for b in range(count // 10):
            whole, flips = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 10), torch.zeros(10).bool()
            record = [whole, flips, None, None, None, torch.randn(10, 10).half()]
            torch.save(record, folder / f"epoch_{epoch}" / f"batch_{b}.tar")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_works_and_every_set_reaches_the_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OVERPROOF_HOME", str(folder / "home"))
    monkeypatch.setenv("OVERPROOF_LOCAL_WORKERS", "1")
    commands = [shlex.split(line)[1:] for line in typed() if line.startswith("overproof ")]
    names = [words[1] for words in commands if words[0] == "import" and "--fkd" not in words]
    # All forms in one run, after the last of them is imported; the document shows one.
    spec = folder / "brought.yaml"
    spec.write_text(spec.read_text().replace("imported: dc", f"imported: [{', '.join(names)}]"))

    said = [call(*words).stdout for words in sorted(commands, key=lambda words: words[0] == "run")]

    report = (folder / "report.html").read_text()
    assert len(names) == 11
    assert [name for name in names if f"imported[name={name}@" not in report] == []
    assert "imported[name=relabelled@" in said[-2]
    assert "weights[name=theirs@" in said[-1]
    [unit] = [
        unit["id"]
        for unit in read_json("plan", spec)["units"]
        if unit["task"] == "imported-sets" and unit["body"]["imported"]["name"] == "dc"
    ]
    call("export", unit, "again.pt", "--format", "dc", "--normalisation", "own")
    again, first = (
        torch.load(path, weights_only=True)["data"][-1][0] for path in ("again.pt", "exported.pt")
    )
    assert torch.equal(again, first)


def test_manifest_of_the_document_is_one(folder: Path) -> None:
    [line] = [line for line in typed() if line.startswith("OVERPROOF_PLUGINS=")]
    models, datasets = Registry("models"), Registry("datasets")

    manifests.register(manifests.read(folder / "mine.yaml"), models=models, datasets=datasets)

    assert line == (
        f"OVERPROOF_PLUGINS=mine.yaml overproof plugins show models {models.names()[0]}"
    )
    assert datasets.names() == ["flowers"]


def test_every_form_and_normalisation_is_in_its_table() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, flags=re.MULTILINE)

    assert sorted(rows) == sorted([*FORMS, *CONVENTIONS, "own"])


def test_specs_of_the_document_are_specs() -> None:
    for block in blocks(DOCUMENT, "yaml")[:3]:
        assert ExperimentSpec.parse(block).name
