"""JPEG and PNG files decoded into one array, several at a time."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overproof.errors import InvalidData
from overproof.ml.datasets.file_tree import File, FileTree

SUFFIXES = (".jpg", ".jpeg", ".png")
_MAX_FILE_BYTES = 2**25
_MAX_PIXELS = 2**24
_MAX_DECODED_BYTES = 2**35
_GREY = frozenset({"1", "L", "LA"})
# Images of 16 bits or floats have no faithful form in bytes and are refused.
_MODES = _GREY | {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_BATCH = 64


def is_image(file: File) -> bool:
    """Whether the name of `file` ends as those of images do."""
    return file.parts[-1].lower().endswith(SUFFIXES)


def decode(
    source: Path, tree: FileTree, files: list[File], size: int | None = None
) -> NDArray[np.uint8]:
    """The images in `files`, in their order.

    Grey images stay grey if all are, else all become RGB. Transparency is dropped, a camera's
    orientation ignored.

    Args:
        source: for messages.
        tree: what the files came from.
        files: at least one.
        size: side in pixels to which images are cropped at the centre and scaled (bilinear); None
            asks that all have one size.

    Returns:
        (N, C, H, W), C = 1 if all are grey.

    Raises:
        InvalidData: an image is unreadable, too large or of another size.
    """
    for file in files:
        if file.size_bytes > _MAX_FILE_BYTES:
            raise InvalidData(f"{source}: {file} has {file.size_bytes} bytes; scale it down")
    return _Decoder(source, files, size).decode(tree)


class _Decoder:
    """Decodes files into one array, each at its place.

    Args:
        source: for messages.
        files: in the order of the result.
        size: as for `decode`.
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
