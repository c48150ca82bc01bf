"""JPEG and PNG files in `train/<class>/` and `test/<class>/` or `val/<class>/`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.file_tree import File, FileTree

_SUFFIXES = (".jpg", ".jpeg", ".png")
_SPLITS = ("train", "test", "val")
_MAX_FILE_BYTES = 2**25
_MAX_PIXELS = 2**24
_MAX_FILES = 5_000_000
_MAX_DECODED_BYTES = 2**35
_GREY = frozenset({"1", "L", "LA"})
# Images of 16 bits or floats have no faithful form in bytes and are refused.
_MODES = _GREY | {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_BATCH = 64


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
    images = _Decoder(source, ordered, size).decode(tree)
    cut = len(train)
    return Arrays(images[:cut], labels[:cut], images[cut:], labels[cut:])


def _label(file: File) -> str:
    return file.parts[-2]


def _splits(source: Path, files: Iterable[File]) -> tuple[list[File], list[File]]:
    """Training and test images, sorted by class and name."""
    found: dict[str, list[File]] = {split: [] for split in _SPLITS}
    roots = set()
    for count, file in enumerate(files, start=1):
        if count > _MAX_FILES:
            raise InvalidData(f"{source} has more than {_MAX_FILES} files; pack it in parts")
        if len(file.parts) < 3 or file.parts[-3] not in _SPLITS:
            continue
        if not file.parts[-1].lower().endswith(_SUFFIXES):
            raise InvalidData(f"{source}: {file} is neither JPEG nor PNG; remove or convert it")
        if file.size_bytes > _MAX_FILE_BYTES:
            raise InvalidData(f"{source}: {file} has {file.size_bytes} bytes; scale it down")
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


class _Decoder:
    """Decodes files into one array, each at its place.

    Args:
        source: for messages.
        files: in the order of the result.
        size: as for `read`.
    """

    def __init__(self, source: Path, files: list[File], size: int | None) -> None:
        self._source = source
        self._rows = {file: row for row, file in enumerate(files)}
        self._size = size
        self._images = np.empty((0, 3, 0, 0), dtype=np.uint8)

    def decode(self, tree: FileTree) -> NDArray[np.uint8]:
        """(N, C, H, W) images, C = 1 if all are grey."""
        contents = tree.read(self._rows)
        first = next(contents)
        self._allocate(first)
        grey = self._place([first])
        # Pillow releases the interpreter while it decodes. Batches, since images can be tiny; some
        # batches at a time, since the files need not fit into memory.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            while some := list(islice(contents, 16 * _BATCH)):
                batches = [some[start : start + _BATCH] for start in range(0, len(some), _BATCH)]
                # A list, since `all` would stop at the first colour image and cancel the rest.
                grey &= all(list(pool.map(self._place, batches)))
        return self._images[:, :1] if grey else self._images

    def _allocate(self, first: tuple[File, bytes]) -> None:
        width, height = self._open(*first).size
        shape = (len(self._rows), 3, height, width)
        if np.prod(shape, dtype=float) > _MAX_DECODED_BYTES:
            raise InvalidData(f"{self._source} is too large: {shape}; give a smaller size")
        self._images = np.empty(shape, dtype=np.uint8)

    def _place(self, batch: list[tuple[File, bytes]]) -> bool:
        """Put images where they belong; whether all are grey."""
        height, width = self._images.shape[2:]
        grey = True
        for file, content in batch:
            image = self._open(file, content)
            if image.size != (width, height):
                raise InvalidData(
                    f"{self._source}: {file} has {image.size[0]} × {image.size[1]} pixels, others "
                    f"{width} × {height}; give a size to scale to"
                )
            grey &= image.mode in _GREY
            self._images[self._rows[file]] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        return grey

    def _open(self, file: File, content: bytes) -> Image.Image:
        what = f"{self._source}: {file}"
        try:
            image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
            if image.size[0] * image.size[1] > _MAX_PIXELS:
                raise InvalidData(f"{what} has more than {_MAX_PIXELS} pixels; scale it down")
            if image.mode not in _MODES:
                raise InvalidData(f"{what} has the mode {image.mode}; convert it to 8 bits")
            image.load()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InvalidData(f"{what} cannot be decoded: {error}; remove or replace it") from None
        if self._size is None:
            return image
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        square = image.convert("L" if image.mode in _GREY else "RGB").crop(
            (left, top, left + side, top + side)
        )
        return square.resize((self._size, self._size), Image.Resampling.BILINEAR)
