"""A data set in memory, and how one is loaded: from a packed file or from a library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overproof.catalog import datasets as catalog
from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.datasets import bundled, packed
from overproof.ml.shapes import ImageFacts


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Training and test images with their labels, on the CPU.

    Attributes:
        name: as in the spec.
        classes: K, the number of classes; every class has training images.
        mean, std: per channel, of pixels in [0, 1].
        mirrors: whether a mirrored image keeps its class.
        train_images, test_images: (N, C, H, W) uint8; 255 is 1.0.
        train_labels, test_labels: (N,) int64 in 0 … K - 1.
    """

    name: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirrors: bool
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called; their numbers where the catalog does not know."""
        return catalog.class_names(self.name) or tuple(map(str, range(self.classes)))

    @property
    def facts(self) -> ImageFacts:
        """What a network must know of these images."""
        _, channels, height, width = self.train_images.shape
        return ImageFacts(
            channels=channels,
            size=(height, width),
            classes=self.classes,
            mean=self.mean,
            std=self.std,
        )


def load(spec: DatasetSpec, packed_file: Path | None) -> Dataset:
    """Load the data set of `spec`.

    Subsets take the first so many images of every class and keep the stored order.

    Args:
        spec: name, and how much of it.
        packed_file: the packed file, or None for one that a library ships.

    Raises:
        UnknownPlugin, InvalidData: nothing of that name and version is shipped; the file holds
            another data set; a class has fewer images than the subset asks for.
        MalformedArtifact: the file is not a packed data set.
    """
    if packed_file is None:
        facts, arrays = bundled.load(spec.name, spec.version)
    else:
        facts, arrays = packed.read(packed_file)
        if facts.name != spec.name:
            raise InvalidData(
                f"the packed file of {spec.name} holds {facts.name}; add the data set again"
            )
    train = _first_of_every_class(
        arrays.train_labels, facts.classes, spec.subset_per_class, f"{spec.name}, training set"
    )
    test = _first_of_every_class(
        arrays.test_labels, facts.classes, spec.test_subset_per_class, f"{spec.name}, test set"
    )
    return Dataset(
        **facts.model_dump(),
        train_images=torch.from_numpy(arrays.train_images[train]),
        train_labels=torch.from_numpy(arrays.train_labels[train]),
        test_images=torch.from_numpy(arrays.test_images[test]),
        test_labels=torch.from_numpy(arrays.test_labels[test]),
    )


def _first_of_every_class(
    labels: NDArray[np.int64], classes: int, count: int | None, what: str
) -> slice | NDArray[np.int64]:
    """What to index with to keep the first `count` of every class in their stored order."""
    if count is None:
        return slice(None)
    present = np.bincount(labels, minlength=classes)
    if present.min() < count:
        raise InvalidData(
            f"{what}: class {present.argmin()} has {present.min()} images, a subset of {count} per "
            "class was asked for; ask for fewer"
        )
    kept = [np.flatnonzero(labels == label)[:count] for label in range(classes)]
    return np.sort(np.concatenate(kept))
