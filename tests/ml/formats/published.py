"""Small sets in every published form, written from its description by nothing but its own means."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from overproof.ml.formats.content import Target
from overproof.ml.shapes import ImageFacts

CLASSES, PER_CLASS, SIZE = 3, 2, 8
COUNT = CLASSES * PER_CLASS
# Of CIFAR-10, as the published code has them.
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
STD = torch.tensor([0.2023, 0.1994, 0.2010]).view(1, 3, 1, 1)

# A small CIFAR-10: its name, so that published statistics are known, but three classes.
TARGET = Target(
    dataset="cifar-10",
    facts=ImageFacts(
        channels=3,
        size=(SIZE, SIZE),
        classes=CLASSES,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    ),
)


def pixels(seed: int = 0) -> Tensor:
    """Images of which no two are equal, in [0, 1]; each class has its own brightness."""
    stream = torch.Generator().manual_seed(seed)
    noise = torch.rand(COUNT, 3, SIZE, SIZE, generator=stream)
    brightness = torch.arange(CLASSES).repeat_interleave(PER_CLASS).view(-1, 1, 1, 1)
    return 0.15 * brightness + 0.7 * noise


def classes() -> Tensor:
    return torch.arange(CLASSES).repeat_interleave(PER_CLASS)


def normalised(images: Tensor) -> Tensor:
    return (images - MEAN) / STD


def logits(seed: int = 1) -> Tensor:
    """Soft labels whose largest entry is the class."""
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(COUNT, CLASSES, generator=stream)
    return rows + 6 * torch.nn.functional.one_hot(classes(), CLASSES)


def write_dc(folder: Path, sets: int = 2) -> Path:
    """`res_DC_….pt`: several sets, of which the last is the one that counts."""
    path = folder / "res_DC_CIFAR10_ConvNet_2ipc.pt"
    data = [[normalised(pixels(sets - 1 - number)), classes()] for number in range(sets)]
    torch.save({"data": data, "accs_all_exps": {"ConvNet": [0.1] * 20}}, path)
    return path


def write_mtt(folder: Path, *, parts: int = 1, labels: Tensor | None = None) -> Path:
    images, labels = normalised(pixels()), classes() if labels is None else labels
    if parts == 1:
        torch.save(images, folder / "images_best.pt")
        torch.save(labels, folder / "labels_best.pt")
        return folder
    for number, (some, of_some) in enumerate(
        zip(images.chunk(parts), labels.chunk(parts), strict=True)
    ):
        torch.save(some.clone(), folder / f"images_best_{number}.pt")
        torch.save(of_some.clone(), folder / f"labels_best_{number}.pt")
    return folder


def write_datm(folder: Path, images: Tensor) -> Path:
    torch.save(images, folder / "images_best.pt")
    torch.save(logits(), folder / "labels_best.pt")
    torch.save(torch.tensor(0.02), folder / "lr_best.pt")
    return folder


def write_idc(folder: Path, factor: int = 2) -> Path:
    run = folder / f"conv3in_grad_mse_nd2000_cut_niter2000_factor{factor}_lr0.005_mix_ipc2"
    run.mkdir()
    torch.save([pixels(), classes()], run / "data.pt")
    return run / "data.pt"


def write_idm(folder: Path, *, augmented: bool = True, device: str = "cuda:0") -> Path:
    """As it was pickled where the tensors lay on a GPU."""
    run = folder / f"CIFAR10_ipc_2_aug_{augmented}_model_ConvNet"
    run.mkdir()
    with _saved_on(device):
        content = pickle.dumps((normalised(pixels()), classes()))
    assert device.encode() in content
    (run / "acc_0.5.pkl").write_bytes(content)
    return run / "acc_0.5.pkl"


def write_dd(folder: Path) -> Path:
    steps = [(normalised(pixels(number)), classes(), torch.tensor(0.03)) for number in (1, 0)]
    torch.save(steps, folder / "results.pth")
    return folder / "results.pth"


def write_dc_bench(folder: Path, *, is_normalised: bool = True) -> Path:
    middle = "normalize_" if is_normalised else ""
    images = folder / f"CIFAR10_IPC2_{middle}images.pt"
    torch.save(normalised(pixels()) if is_normalised else pixels(), images)
    torch.save(classes().float(), folder / f"CIFAR10_IPC2_{middle}labels.pt")
    return images


def write_npz(folder: Path, name: str = "set.npz") -> Path:
    channels_last = (pixels() * 255).round().byte().permute(0, 2, 3, 1).numpy()
    np.savez(folder / name, images=channels_last, labels=classes().numpy())
    return folder / name


def write_folder(folder: Path, pattern: str, count: int = CLASSES) -> Path:
    """Images of which those of class c have the value 10 c + number.

    Args:
        folder: to write to.
        pattern: path of an image, from `c` and `i`.
        count: of classes.
    """
    for c in range(count):
        for i in range(PER_CLASS):
            path = folder / pattern.format(c=c, i=i)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((SIZE, SIZE, 3), 10 * c + i, np.uint8)).save(path)
    return folder


SRE2L = "new{c:03d}/class{c:03d}_id{i:03d}.png"
RDED = "{c:05d}/class{c:05d}_id{i:05d}.png"
D4M = "{c}/{c}-image{i}0.png"


@contextmanager
def _saved_on(device: str) -> Iterator[None]:
    """Files then say that their storages lie there; this machine need not have such a device."""

    def location(_: Any) -> str:
        return device

    with mock.patch.object(torch.serialization, "location_tag", location):
        yield
