"""Images, labels and learning rates in files of their own that lie beside each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.formats import torch_files
from overproof.ml.formats.content import Source, as_images, as_tensor, is_images

_BEST = "images_best.pt"
_SHARD = re.compile(r"images_best_(\d+)\.pt")


@dataclass(frozen=True)
class Files:
    """Files of one set.

    Attributes:
        images, labels: as many of each, in the order in which they are put together.
        learning_rate: None where there is none.
    """

    images: tuple[Path, ...]
    labels: tuple[Path, ...]
    learning_rate: Path | None

    def load_images(self) -> Tensor:
        """(N, C, H, W) of all parts."""
        parts = [as_images(torch_files.load(path), str(path)) for path in self.images]
        if len({part.shape[1:] for part in parts}) > 1:
            raise InvalidData(f"{self.images[0].parent} has parts with images of different sizes")
        return torch.cat(parts)

    def load_labels(self) -> Tensor:
        """(N,) or (N, K) of all parts."""
        parts = [as_tensor(torch_files.load(path), str(path)) for path in self.labels]
        if len({part.shape[1:] for part in parts}) > 1:
            raise InvalidData(f"{self.labels[0].parent} has parts with different kinds of labels")
        return torch.cat(parts)


def find(source: Source) -> Files | None:
    """`images_best.pt` or its parts in a folder, or a file `images_….pt`; None without one."""
    if not source.is_folder:
        name = source.path.name
        return _beside(source.path) if name.startswith("images") and name.endswith(".pt") else None
    if _BEST in source.names():
        return _beside(source.path / _BEST)
    shards = sorted(int(match[1]) for name in source.names() if (match := _SHARD.fullmatch(name)))
    if not shards:
        return None
    if shards != list(range(len(shards))):
        raise InvalidData(f"{source.path} has parts {shards} of images; some are missing")
    files = [_beside(source.path / f"images_best_{number}.pt") for number in shards]
    return Files(
        tuple(path for each in files for path in each.images),
        tuple(path for each in files for path in each.labels),
        None,
    )


def find_benchmark(source: Source) -> Files | None:
    """`…_images.pt` beside `…_labels.pt`, the file or the only one in a folder; None without."""
    if not source.is_folder:
        found = [source.path] if source.path.name.endswith("_images.pt") else []
    else:
        found = sorted(source.path.glob("*_images.pt"))
    if len(found) != 1:
        return None
    labels = found[0].with_name(found[0].name.removesuffix("_images.pt") + "_labels.pt")
    return Files((found[0],), (labels,), None) if labels.is_file() else None


def with_labels(files: Files, labels: Path | None) -> Files:
    """`files` with the labels that the user named, or those beside the images.

    Raises:
        InvalidData: there are none.
    """
    chosen = files.labels if labels is None else (labels,)
    missing = [path for path in chosen if not path.is_file()]
    if missing:
        raise InvalidData(
            f"{files.images[0]} needs labels: {missing[0]} does not exist; name them by --labels"
        )
    return Files(files.images, chosen, files.learning_rate)


def holds_images(files: Files) -> bool:
    """Whether the first file of images really holds such."""
    return is_images(torch_files.load(files.images[0]))


def _beside(images: Path) -> Files:
    rest = images.name.removeprefix("images")
    rate = images.with_name(f"lr{rest}")
    return Files((images,), (images.with_name(f"labels{rest}"),), rate if rate.is_file() else None)
