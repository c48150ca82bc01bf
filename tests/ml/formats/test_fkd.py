"""Soft labels of views, written as the published code writes them, bind to the right images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import RandomSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as views
from torchvision.transforms.v2.functional import pil_to_tensor

from overproof.errors import InvalidData
from overproof.ml.distill.base import DistilledSet
from overproof.ml.formats.content import Target, Wishes
from overproof.ml.formats.importing import import_set
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.soft_labels import SoftLabels
from tests.ml.formats.published import D4M, SRE2L

CLASSES, PER_CLASS, SIZE, EPOCHS, BATCH = 12, 2, 8, 3, 10
COUNT = CLASSES * PER_CLASS
TARGET = Target(
    dataset="cifar-100",
    facts=ImageFacts(
        channels=3, size=(SIZE, SIZE), classes=CLASSES, mean=(0.5,) * 3, std=(0.25,) * 3
    ),
)
TEACHER = torch.randn(3 * SIZE * SIZE, CLASSES, generator=torch.Generator().manual_seed(7)) / 8


def teacher(x: Tensor) -> Tensor:
    return x.flatten(1) @ TEACHER


def write_images(folder: Path, pattern: str) -> Path:
    stream = torch.Generator().manual_seed(1)
    for c in range(CLASSES):
        for i in range(PER_CLASS):
            path = folder / pattern.format(c=c, i=i)
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = torch.randint(0, 256, (SIZE, SIZE, 3), generator=stream, dtype=torch.uint8)
            Image.fromarray(levels.numpy()).save(path)
    return folder


def write_labels(folder: Path, images: Path, mixing: str) -> Path:
    """As relabelling writes them: torchvision's folder and sampler, a batch at a time."""
    samples = ImageFolder(str(images)).samples
    pixels = torch.stack([pil_to_tensor(Image.open(path)) for path, _ in samples]) / 255
    sampler = RandomSampler(samples, generator=torch.Generator().manual_seed(42))
    torch.manual_seed(3)  # of the crops and mixes, which files record
    for epoch in range(EPOCHS):
        order = list(sampler)
        (folder / f"epoch_{epoch}").mkdir(parents=True)
        for b in range(0, COUNT, BATCH):
            rows = order[b : b + BATCH]
            coords, flips, seen = [], [], []
            for row in rows:
                i, j, h, w = RandomResizedCrop.get_params(pixels[row], [0.08, 1.0], [3 / 4, 4 / 3])
                view = views.resized_crop(pixels[row], i, j, h, w, [SIZE, SIZE], antialias=True)
                flip = bool(torch.rand(1) < 0.5)
                seen.append(view.flip(-1) if flip else view)
                flips.append(flip)
                coords.append([i / SIZE, j / SIZE, h / SIZE, w / SIZE])
            batch, mix, share, box = mixed(torch.stack(seen), mixing)
            record = [torch.tensor(coords), torch.tensor(flips), mix, share, box]
            path = folder / f"epoch_{epoch}" / f"batch_{b // BATCH}.tar"
            torch.save([*record, teacher(batch).half()], path)
    return folder


def mixed(batch: Tensor, mixing: str) -> tuple[Tensor, Tensor | None, float | None, Any]:
    if mixing == "none":
        return batch, None, None, None
    mix = torch.randperm(len(batch))
    if mixing == "mixup":
        return 0.7 * batch + 0.3 * batch[mix], mix, 0.7, None
    x1, y1, x2, y2 = 1, 2, 5, 8
    others = batch.clone()
    others[:, :, x1:x2, y1:y2] = batch[mix, :, x1:x2, y1:y2]
    return others, mix, 0.6, [x1, y1, x2, y2]


def taken(images: Path, fkd: Path, into: Path) -> tuple[DistilledSet, SoftLabels]:
    facts = import_set(images, into, TARGET, Wishes(fkd=fkd), labels_into=into.with_suffix(".fkd"))
    assert (
        f"soft labels of {EPOCHS} epochs of views, for protocols that replay them" in facts["notes"]
    )
    labels = SoftLabels(into.with_suffix(".fkd"), images=COUNT, classes=CLASSES, epochs=EPOCHS)
    return DistilledSet.read(into, TARGET.facts), labels


@pytest.mark.parametrize("mixing", ["none", "cutmix", "mixup"])
@pytest.mark.parametrize("pattern", [SRE2L, D4M], ids=["padded", "unpadded"])
def test_teacher_says_of_what_is_replayed_what_the_files_say(
    tmp_path: Path, pattern: str, mixing: str
) -> None:
    images = write_images(tmp_path / "images", pattern)
    fkd = write_labels(tmp_path / "fkd", images, mixing)

    made, labels = taken(images, fkd, tmp_path / "set")

    everything = torch.arange(COUNT)
    for epoch in range(EPOCHS):
        shown = labels.epoch(epoch).show(made.images, everything)
        said = labels.logits(epoch)
        assert torch.allclose(teacher(shown), said, atol=0.02)
    # Labels of other images are far from it, so the above binds.
    assert not torch.allclose(teacher(shown), said.roll(1, 0), atol=0.2)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fkd")
    write_labels(folder / "fkd", write_images(folder / "images", SRE2L), "cutmix")
    return folder


def _changed(change: Callable[[list[Any]], Any]) -> Callable[[Path], None]:
    def apply(fkd: Path) -> None:
        path = fkd / "epoch_1" / "batch_0.tar"
        value = torch.load(path, weights_only=True)
        torch.save(change(value), path)

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda fkd: (fkd / "epoch_0").rename(fkd / "epoch_9"), r"not each of epoch_"),
        (lambda fkd: (fkd / "epoch_1" / "batch_1.tar").unlink(), r"not each of batch_"),
        (
            lambda fkd: (fkd / "epoch_1" / "batch_2.tar").unlink(),
            "labels of 20 images, the set has 24",
        ),
        (lambda fkd: (fkd / "epoch_1" / "batch_0.tar").write_bytes(b"<html>"), "is a web page"),
        (_changed(lambda value: value[:5]), "no batch of coords"),
        (_changed(lambda value: [value[0] * 2, *value[1:]]), "crops that leave"),
        (_changed(lambda value: [value[0][:3], *value[1:]]), "of different numbers"),
        (
            _changed(lambda value: [*value[:2], value[2] + 1, *value[3:]]),
            "mixes rows that it has not",
        ),
        (_changed(lambda value: [*value[:3], 7.0, *value[4:]]), "by a share of 7"),
        (_changed(lambda value: [*value[:4], [5, 5, 1, 1], value[5]]), "impossible box"),
        (_changed(lambda value: [*value[:5], value[5][:, :3]]), "for 12 classes"),
        (_changed(lambda value: [*value[:5], value[5] * torch.inf]), "not finite"),
    ],
)
def test_labels_that_do_not_belong_are_refused(
    written: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    fkd = tmp_path / "fkd"
    for path in (written / "fkd").rglob("*.tar"):
        copy = fkd / path.relative_to(written / "fkd")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    damage(fkd)

    with pytest.raises(InvalidData, match=message) as refusal:
        taken(written / "images", fkd, tmp_path / "set")

    assert "\n" not in str(refusal.value)


def test_labels_of_what_is_no_folder_of_files_are_refused(written: Path, tmp_path: Path) -> None:
    torch.save([torch.rand(COUNT, 3, SIZE, SIZE), torch.arange(12).repeat(2)], tmp_path / "data.pt")

    with pytest.raises(InvalidData, match="holds no image files, which soft labels"):
        import_set(
            tmp_path / "data.pt",
            tmp_path / "set",
            TARGET,
            Wishes(fkd=written / "fkd", canvas=1),
            labels_into=tmp_path / "labels",
        )
