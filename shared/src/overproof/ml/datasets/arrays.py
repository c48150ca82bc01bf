"""What every reader of data sets returns, and what must be true of it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from overproof.catalog.datasets import DatasetInfo
from overproof.errors import InvalidData


class Arrays(NamedTuple):
    """Training and test images with their labels.

    Images are (N, C, H, W) uint8, labels (N,) int64.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


class DatasetFacts(BaseModel):
    """What is known of a data set besides its pixels; attributes as in `base.Dataset`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    classes: Annotated[int, Field(ge=1)]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
    mirrors: bool

    @classmethod
    def of(cls, info: DatasetInfo) -> DatasetFacts:
        """The facts of a data set of the catalog."""
        return cls(
            name=info.name,
            classes=info.classes,
            mean=info.mean,
            std=info.std,
            mirrors=info.mirrors,
        )


def check(arrays: Arrays, classes: int) -> None:
    """Refuse arrays that are no data set of `classes` classes.

    Raises:
        InvalidData: types or shapes do not fit together, labels lie outside 0 … classes - 1, or a
            class has no training image.
    """
    for split, images, labels in (
        ("training", arrays.train_images, arrays.train_labels),
        ("test", arrays.test_images, arrays.test_labels),
    ):
        _check_split(split, images, labels, classes)
    if arrays.train_images.shape[1:] != arrays.test_images.shape[1:]:
        raise InvalidData(
            f"training images are {arrays.train_images.shape[1:]}, test images "
            f"{arrays.test_images.shape[1:]} (C, H, W); bring both to one size"
        )
    empty = np.flatnonzero(np.bincount(arrays.train_labels, minlength=classes) == 0)
    if empty.size:
        raise InvalidData(
            f"{empty.size} of {classes} classes have no training image, the first is {empty[0]}; "
            "labels must be 0 … K - 1 without gaps"
        )


def _check_split(split: str, images: NDArray[Any], labels: NDArray[Any], classes: int) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InvalidData(
            f"{split} images must be (N, C, H, W) uint8 with 1 or 3 channels, "
            f"not {images.shape} {images.dtype}"
        )
    if labels.dtype != np.int64 or labels.shape != (len(images),):
        raise InvalidData(
            f"{split} labels must be ({len(images)},) int64, not {labels.shape} {labels.dtype}"
        )
    if images.size == 0:
        raise InvalidData(f"there are no {split} images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InvalidData(f"{split} labels must lie in 0 … {classes - 1}, not {low} … {high}")
