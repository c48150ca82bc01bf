"""ImageNet-1K, Tiny ImageNet and subsets of ten classes, as they are handed out.

ImageNet-1K: `train/<class>/…`, and `val/<class>/…` or `val/…` with `LOC_val_solution.csv`.
Tiny ImageNet: `train/<class>/images/…`, `val/images/…` with `val_annotations.txt`; its `test`
folder has no labels and is passed over. Classes are numbered in the order of their names
(`n01440764` and on), as everywhere; those of a subset in the order in which it lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from overproof.catalog.imagenet import IMAGENET_CLASSES, SUBSETS
from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.file_tree import File, FileTree
from overproof.ml.datasets.image_files import decode, is_image

NAMES = ("tiny-imagenet", "imagenet-1k", "imagenet-1k-64", *SUBSETS)
_TINY, _KAGGLE = "val_annotations.txt", "LOC_val_solution.csv"
_MAX_ANNOTATIONS = 2**24  # bytes


@dataclass(frozen=True)
class _Labelled:
    """An image and the name of its class."""

    file: File
    label: str


def has_annotations(source: Path) -> bool:
    """Whether a folder, or one in it, has a file of labels beside its validation images."""
    places = ("", "val/", "*/val/", "*/")
    return source.is_dir() and any(
        next(source.glob(f"{place}{name}"), None) for place in places for name in (_TINY, _KAGGLE)
    )


def read(source: Path, size: int | None, *, name: str = "", per_class: int | None = None) -> Arrays:
    """The data set in a folder or an archive; validation images are the test set.

    Args:
        source: the folder or archive.
        size: side in pixels, as in `image_files.decode`.
        name: of the data set; picks its classes where it is a subset.
        per_class: take no more than the first so many training images of each class.

    Raises:
        InvalidData: a part is missing, images are without a label, or the classes are not those of
            the subset.
    """
    tree = FileTree(source)
    files = list(tree.files())
    train = [each for file in files if (each := _of_training(file)) is not None]
    test = _of_validation(source, tree, files)
    if not train or not test:
        raise InvalidData(
            f"{source} needs images in train/<class>/, and in val/<class>/ or in val/ with {_TINY} "
            f"or {_KAGGLE}"
        )
    known = sorted({each.label for each in train})
    odd = sorted({each.label for each in test} ^ set(known))
    if odd:
        raise InvalidData(
            f"{source}: {len(odd)} classes have only training or only validation images, e.g. "
            f"{odd[0]}"
        )
    numbers = _numbers(source, known, name)
    train = _first_of_each(_ordered(train, numbers), per_class)
    test = _ordered(test, numbers)
    images = decode(source, tree, [each.file for each in train + test], size)
    labels = np.array([numbers[each.label] for each in train + test], dtype=np.int64)
    cut = len(train)
    return Arrays(images[:cut], labels[:cut], images[cut:], labels[cut:])


def _of_training(file: File) -> _Labelled | None:
    if not is_image(file):
        return None
    if file.parts[-4:-3] == ("train",) and file.parts[-2] == "images":
        return _Labelled(file, file.parts[-3])
    if file.parts[-3:-2] == ("train",):
        return _Labelled(file, file.parts[-2])
    return None


def _of_validation(source: Path, tree: FileTree, files: Sequence[File]) -> list[_Labelled]:
    annotations = [file for file in files if file.parts[-1] in (_TINY, _KAGGLE)]
    if len(annotations) > 1:
        raise InvalidData(f"{source} has several files of labels; pack one data set at a time")
    if not annotations:
        return [
            _Labelled(file, file.parts[-2])
            for file in files
            if is_image(file) and file.parts[-3:-2] == ("val",)
        ]
    labels = _annotated(source, tree, annotations[0])
    images = [
        file
        for file in files
        if is_image(file) and ("val",) in (file.parts[-2:-1], file.parts[-3:-2])
    ]
    without = [file for file in images if file.parts[-1].partition(".")[0] not in labels]
    if without:
        raise InvalidData(
            f"{source}: {len(without)} validation images have no label in {annotations[0]}, e.g. "
            f"{without[0]}"
        )
    return [_Labelled(file, labels[file.parts[-1].partition(".")[0]]) for file in images]


def _annotated(source: Path, tree: FileTree, file: File) -> Mapping[str, str]:
    """Name of an image without its suffix → class."""
    if file.size_bytes > _MAX_ANNOTATIONS:
        raise InvalidData(
            f"{source}: {file} has {file.size_bytes} bytes; that is no list of labels"
        )
    [(_, content)] = tree.read([file])
    labels = {}
    for line in content.decode("utf-8", "replace").splitlines():
        # "val_0.JPEG\tn03444034\t0\t32\t44\t62" and "ILSVRC2012_val_1,n03995372 85 1 499 272"
        image, _, rest = line.replace(",", "\t").partition("\t")
        words = rest.split()
        if image and words and image != "ImageId":
            labels[image.partition(".")[0]] = words[0]
    return labels


def _numbers(source: Path, known: Sequence[str], name: str) -> dict[str, int]:
    """Class → number, of the classes that belong to the data set."""
    subset = SUBSETS.get(name)
    if subset is None:
        return {label: number for number, label in enumerate(known)}
    if len(known) == IMAGENET_CLASSES:
        chosen = [known[index] for index in subset.indices]
    elif len(known) == len(subset.indices):
        # Names in order are indices in order, so the ten by themselves tell which is which.
        place = {index: rank for rank, index in enumerate(sorted(subset.indices))}
        chosen = [known[place[index]] for index in subset.indices]
    else:
        raise InvalidData(
            f"{source} has {len(known)} classes; {name} is taken from all {IMAGENET_CLASSES} of "
            f"ImageNet-1K, or from a folder of its own {len(subset.indices)}"
        )
    return {label: number for number, label in enumerate(chosen)}


def _ordered(images: list[_Labelled], numbers: Mapping[str, int]) -> list[_Labelled]:
    wanted = [each for each in images if each.label in numbers]
    return sorted(wanted, key=lambda each: (numbers[each.label], each.file.parts))


def _first_of_each(images: list[_Labelled], per_class: int | None) -> list[_Labelled]:
    if per_class is None:
        return images
    seen: dict[str, int] = {}
    kept = []
    for each in images:
        seen[each.label] = seen.get(each.label, 0) + 1
        if seen[each.label] <= per_class:
            kept.append(each)
    return kept
