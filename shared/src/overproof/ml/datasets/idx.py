"""The IDX files of MNIST and its kin, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays

_UNSIGNED_BYTE = 8
_MAX_BYTES = 2**32
_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def find(folder: Path) -> list[Path]:
    """The four files of a folder in the order of `Arrays`; an empty list unless all are there."""
    found = [
        path for stem in _STEMS for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()
    ]
    stems = {path.name.removesuffix(".gz") for path in found}
    if len(stems) < len(_STEMS):
        return []
    # Where torchvision has unpacked a file beside its archive, the plain one is taken.
    return [next(path for path in found if path.name.startswith(stem)) for stem in _STEMS]


def read(folder: Path) -> Arrays:
    """The data set of a folder for which `find` found something.

    Raises:
        InvalidData: a file is not IDX, is cut short, or its numbers are no bytes.
    """
    train_images, train_labels, test_images, test_labels = map(_array, find(folder))
    return Arrays(
        train_images[:, None],
        train_labels.astype(np.int64),
        test_images[:, None],
        test_labels.astype(np.int64),
    )


def _array(path: Path) -> NDArray[Any]:
    """The array of an IDX file: two zero bytes, type, rank, sizes as big-endian 32 bits, data."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            rank = 3 if "idx3" in path.name else 1
            head = file.read(4 + 4 * rank)
            if head[:4] != bytes((0, 0, _UNSIGNED_BYTE, rank)) or len(head) < 4 + 4 * rank:
                raise InvalidData(f"{path} is no IDX file of {rank} axes; download it again")
            shape = struct.unpack(f">{rank}I", head[4:])
            count = math.prod(shape)
            if count > _MAX_BYTES:
                raise InvalidData(f"{path} announces {count} bytes; download it again")
            data = file.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidData(f"{path} cannot be read: {error}; download it again") from None
    if len(data) != count:
        raise InvalidData(f"{path} has not the {count} bytes it announces; download it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
