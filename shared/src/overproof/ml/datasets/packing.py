"""Turns what a user has on disk into a packed data set, once, before it goes to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overproof.catalog.datasets import dataset
from overproof.errors import InvalidData, UnknownPlugin
from overproof.ml.datasets import idx, image_folder, imagenet, npz, packed, torchvision_sets
from overproof.ml.datasets.arrays import Arrays, DatasetFacts

# Where torchvision puts IDX files below its root, by the name of the data set.
_IDX_FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}

# MNIST and Fashion-MNIST come in files of the same names and shapes; their means differ by 0.16.
_TOLERATED_DIFFERENCE = 0.05
_BLOCK = 4096


def pack(
    name: str,
    source: Path,
    into: Path,
    *,
    size: int | None = None,
    mirrors: bool = False,
    per_class: int | None = None,
) -> dict[str, Any]:
    """Pack the data set at `source` into the file `into`.

    Recognised are: a folder as torchvision leaves it (CIFAR-10, CIFAR-100, SVHN, MNIST,
    Fashion-MNIST); a folder with the four IDX files of MNIST and its kin; ImageNet-1K, its subsets
    and Tiny ImageNet (`imagenet.read`); a folder of images, or an archive of one
    (`image_folder.read`); an .npz archive (`npz.read`). Equal contents give equal bytes, whatever
    the form and the order of files in it.

    Args:
        name: of the data set. If the catalog lists it, the catalog's facts hold and the arrays must
            agree with them; else mean and deviation are computed from the training images.
        source: file or folder.
        into: path of the packed file; replaced if it exists.
        size: side in pixels for images that are not all of one size; the catalog's for ImageNet
            and the sets made of it.
        mirrors: whether a mirrored image keeps its class; for names that the catalog does not list.
        per_class: take no more than the first so many training images of each class; of ImageNet
            and the sets made of it.

    Returns:
        The facts as JSON: name, classes, shape (C, H, W), counts, mean, std, mirrors.

    Raises:
        InvalidData: the source is absent, of no known form, or not a data set.
    """
    arrays = _read(name, source, size, per_class)
    facts = _facts(name, arrays, mirrors)
    packed.write(into, facts, arrays)
    return {
        **facts.model_dump(mode="json"),
        "shape": list(arrays.train_images.shape[1:]),
        "training_images": len(arrays.train_images),
        "test_images": len(arrays.test_images),
    }


def _read(name: str, source: Path, size: int | None, per_class: int | None) -> Arrays:
    if not source.exists():
        raise InvalidData(f"{source} does not exist")
    if name in imagenet.NAMES or imagenet.has_annotations(source):
        if size is None and name in imagenet.NAMES:
            size = dataset(name).shape[1]
        return imagenet.read(source, size, name=name, per_class=per_class)
    if per_class is not None:
        raise InvalidData(f"{source} is read whole; specs take parts by `subset_per_class`")
    if source.is_file():
        return npz.read(source) if source.suffix == ".npz" else image_folder.read(source, size)
    for folder in (source, source / _IDX_FOLDERS.get(name, ".")):
        if idx.find(folder):
            return idx.read(folder)
    sets = torchvision_sets.find(source)
    if name in sets or len(sets) == 1:
        return torchvision_sets.read(name if name in sets else sets[0], source)
    if sets:
        raise InvalidData(f"{source} holds {' and '.join(sets)}; add them under these names")
    return image_folder.read(source, size)


def _facts(name: str, arrays: Arrays, mirrors: bool) -> DatasetFacts:
    mean, std = _moments(arrays.train_images)
    try:
        info = dataset(name)
    except UnknownPlugin:
        classes = int(arrays.train_labels.max(initial=0)) + 1
        return DatasetFacts(name=name, classes=classes, mean=mean, std=std, mirrors=mirrors)
    shape = arrays.train_images.shape[1:]
    if shape != info.shape:
        raise InvalidData(
            f"{info.name} has images of {info.shape} (C, H, W), these are {shape}; "
            "add them under another name"
        )
    if info.borrows_statistics:
        return DatasetFacts.of(info)
    if not np.allclose((mean, std), (info.mean, info.std), rtol=0, atol=_TOLERATED_DIFFERENCE):
        raise InvalidData(
            f"{info.name} has mean {info.mean} and deviation {info.std}, these images {mean} and "
            f"{std}; add them under another name"
        )
    return DatasetFacts.of(info)


def _moments(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of pixels in [0, 1], to four decimals."""
    channels = images.shape[1]
    counts = np.zeros((channels, 256))
    # In blocks: bincount makes eight bytes of every one.
    for start in range(0, len(images), _BLOCK):
        for channel in range(channels):
            block = images[start : start + _BLOCK, channel]
            counts[channel] += np.bincount(block.ravel(), minlength=256)
    levels = np.arange(256) / 255
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(axis=1)
    std = np.sqrt(variance).round(4).clip(min=1e-4)
    return tuple(mean.round(4).tolist()), tuple(std.tolist())
