"""JPEG and PNG files in `train/<class>/` and `test/<class>/` or `val/<class>/`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.file_tree import File, FileTree
from overproof.ml.datasets.image_files import decode, is_image

_SPLITS = ("train", "test", "val")


def read(source: Path, size: int | None = None) -> Arrays:
    """The data set in a folder or a tar archive.

    Classes are numbered in the order of their names; images lie in the order of class and file
    name, whatever the order in the source. Grey images stay grey if all are, else all become RGB.
    Transparency is dropped, a camera's orientation ignored. `train` may lie below other folders;
    files outside the splits and hidden ones are ignored.

    Args:
        source: the folder or archive.
        size: side in pixels to which images are cropped at the centre and scaled (bilinear);
            None asks that all have one size.

    Raises:
        InvalidData: a split is absent or the two differ in classes; an image is unreadable, too
            large or of another size; the source holds links or paths that leave it.
    """
    tree = FileTree(source)
    train, test = _splits(source, tree.files())
    numbers = {name: number for number, name in enumerate(sorted({_label(file) for file in train}))}
    ordered = train + test
    labels = np.array([numbers[_label(file)] for file in ordered], dtype=np.int64)
    images = decode(source, tree, ordered, size)
    cut = len(train)
    return Arrays(images[:cut], labels[:cut], images[cut:], labels[cut:])


def _label(file: File) -> str:
    return file.parts[-2]


def _splits(source: Path, files: Iterable[File]) -> tuple[list[File], list[File]]:
    """Training and test images, sorted by class and name."""
    found: dict[str, list[File]] = {split: [] for split in _SPLITS}
    roots = set()
    for file in files:
        if len(file.parts) < 3 or file.parts[-3] not in _SPLITS:
            continue
        if not is_image(file):
            raise InvalidData(f"{source}: {file} is neither JPEG nor PNG; remove or convert it")
        found[file.parts[-3]].append(file)
        roots.add("/".join(file.parts[:-3]) or ".")
    if len(roots) > 1:
        names = ", ".join(sorted(roots)[:3])
        raise InvalidData(f"{source} holds several data sets, in {names}; pack one at a time")
    if not found["train"] or bool(found["test"]) == bool(found["val"]):
        raise InvalidData(
            f"{source} needs images in train/<class>/ and in either test/<class>/ or val/<class>/"
        )
    train, test = found["train"], found["test"] or found["val"]
    odd = sorted({_label(file) for file in train} ^ {_label(file) for file in test})
    if odd:
        raise InvalidData(
            f"{source}: {len(odd)} classes have only training or only test images, e.g. {odd[0]}"
        )
    for split in (train, test):
        split.sort(key=lambda file: file.parts)
        for file, following in pairwise(split):
            if file.parts == following.parts:
                raise InvalidData(f"{source} holds {file} twice; make a clean archive")
    return train, test
