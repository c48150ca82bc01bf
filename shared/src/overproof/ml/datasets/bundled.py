"""Data sets that a library ships, so that a first experiment needs no file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from overproof.catalog.datasets import dataset
from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays, DatasetFacts

_TEST_DIGITS_PER_CLASS = 36


def load(name: str, version: str) -> tuple[DatasetFacts, Arrays]:
    """Facts and arrays of a bundled data set.

    Args:
        name: as in the catalog.
        version: `bundled-N`, or "" for whatever this release ships.

    Raises:
        UnknownPlugin: the catalog has no such data set.
        InvalidData: it is not bundled, or in another version.
    """
    info = dataset(name)
    if info.name not in _LOADERS:
        raise InvalidData(
            f"{name} is shipped by no library; add it once with `overproof data add {name} PATH`"
        )
    if version not in ("", info.bundled_version):
        raise InvalidData(
            f"{name} is shipped as {info.bundled_version}, not {version}; "
            "use the release of overproof that the experiment was planned with"
        )
    return DatasetFacts.of(info), _LOADERS[info.name]()


def _digits() -> Arrays:
    """scikit-learn's digits, 1,437 for training and 360 for testing.

    Grey levels 0 … 16 become round(255 · level / 16). Of every class, 36 images evenly spaced in
    the stored order are for testing, so each writer is in both parts; the others, in their stored
    order, are for training. Nothing is drawn at random.
    """
    from sklearn.datasets import load_digits  # only this data set needs scikit-learn

    levels, labels = load_digits(return_X_y=True)
    images = np.rint(levels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = labels.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        spaced = np.arange(_TEST_DIGITS_PER_CLASS) * len(members) // _TEST_DIGITS_PER_CLASS
        is_test[members[spaced]] = True
    return Arrays(images[~is_test], labels[~is_test], images[is_test], labels[is_test])


_LOADERS: dict[str, Callable[[], Arrays]] = {"digits": _digits}
