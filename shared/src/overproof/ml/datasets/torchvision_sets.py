"""Folders as torchvision leaves them after a download: CIFAR-10, CIFAR-100, SVHN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets as tv
from numpy.typing import NDArray

from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays


@dataclass(frozen=True)
class OfflineSet:
    """A data set that torchvision reads.

    Attributes:
        marker: file or folder below the root by which it is recognised.
        splits: root → its training and its test split.
    """

    marker: str
    splits: Callable[[Path], tuple[Any, Any]]


SETS = {
    "cifar-10": OfflineSet(
        "cifar-10-batches-py", lambda root: (tv.CIFAR10(root), tv.CIFAR10(root, train=False))
    ),
    "cifar-100": OfflineSet(
        "cifar-100-python", lambda root: (tv.CIFAR100(root), tv.CIFAR100(root, train=False))
    ),
    "svhn": OfflineSet(
        "train_32x32.mat", lambda root: (tv.SVHN(root), tv.SVHN(root, split="test"))
    ),
}


def find(root: Path) -> list[str]:
    """Names of the sets below `root`."""
    return [name for name, known in SETS.items() if (root / known.marker).exists()]


def read(name: str, root: Path) -> Arrays:
    """The set called `name` below `root`.

    torchvision compares MD5 sums before it unpickles CIFAR's batches, so altered files are
    refused, not run.

    Raises:
        InvalidData: files are absent or altered.
    """
    try:
        train, test = SETS[name].splits(root)
    except (RuntimeError, OSError) as error:
        reason = str(error).split(". You can use")[0]
        raise InvalidData(f"{name} below {root} is unusable: {reason}; download it again") from None
    return Arrays(*_arrays(train), *_arrays(test))


def _arrays(split: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if isinstance(split, tv.SVHN):
        return split.data, split.labels.astype(np.int64)
    return split.data.transpose(0, 3, 1, 2), np.array(split.targets, dtype=np.int64)
