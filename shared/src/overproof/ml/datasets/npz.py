"""NumPy archives with the arrays `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays

_NAMES = ("x_train", "y_train", "x_test", "y_test")
_MAX_BYTES = 2**35
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read(path: Path) -> Arrays:
    """The data set in an .npz file.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels; bytes, or floats in
    [0, 1], which become round(255 · x). Labels are integers, (N,) or (N, 1).

    Raises:
        InvalidData: an array is absent, of another form, holds Python objects (they are never
            unpickled), or has floats outside [0, 1].
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _MAX_BYTES:
            raise InvalidData(f"{path} unpacks to {size} bytes; at most {_MAX_BYTES} are read")
        with np.load(path, allow_pickle=False) as archive:
            absent = sorted(set(_NAMES) - set(archive.files))
            if absent:
                raise InvalidData(f"{path} lacks {', '.join(absent)}; save them by np.savez")
            arrays = {name: archive[name] for name in _NAMES}
    except _UNREADABLE as error:
        raise InvalidData(f"{path} is no archive of plain arrays: {error}") from None
    for name, array in arrays.items():  # what has no header of an array comes as bytes
        if not isinstance(array, np.ndarray):
            raise InvalidData(f"{path}: {name} is no array; save it by np.savez")
    x_train, y_train, x_test, y_test = (arrays[name] for name in _NAMES)
    return Arrays(
        _images(x_train, f"{path}: x_train"),
        _labels(y_train, f"{path}: y_train"),
        _images(x_test, f"{path}: x_test"),
        _labels(y_test, f"{path}: y_test"),
    )


def _images(x: NDArray[Any], what: str) -> NDArray[np.uint8]:
    return _as_bytes(_channels_first(x, what), what)


def _channels_first(x: NDArray[Any], what: str) -> NDArray[Any]:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise InvalidData(f"{what} must be (N, H, W[, C]) or (N, C, H, W), not {x.shape}")
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if first == last:
        where = "both axes 1 and 3" if first else "no axis"
        raise InvalidData(f"{what} {x.shape}: {where} could be 1 or 3 channels; transpose it")
    return x if first else x.transpose(0, 3, 1, 2)


def _as_bytes(x: NDArray[Any], what: str) -> NDArray[np.uint8]:
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        raise InvalidData(f"{what} must be uint8 or floats in [0, 1], not {x.dtype}")
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise InvalidData(f"{what} lies in [{x.min():g}, {x.max():g}]; scale it to [0, 1]")
    levels: NDArray[np.uint8] = np.rint(x * 255).astype(np.uint8)
    return levels


def _labels(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    if not np.issubdtype(y.dtype, np.integer):
        raise InvalidData(f"{what} must be integer class indices, not {y.dtype}")
    return y[:, 0].astype(np.int64) if y.ndim == 2 and y.shape[1] == 1 else y.astype(np.int64)
