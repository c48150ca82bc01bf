"""Small data sets in the forms in which users bring them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overproof.core.spec import DatasetSpec
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.base import load

CLASSES = ("cat", "dog", "eel")


def some_arrays() -> Arrays:
    """Nine training and six test images in colour, 5 × 4 pixels, in the order of their classes."""
    random = np.random.default_rng(0)
    return Arrays(
        random.integers(0, 256, (9, 3, 5, 4), dtype=np.uint8),
        np.repeat(np.arange(3), 3),
        random.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8),
        np.repeat(np.arange(3), 2),
    )


def png(image: NDArray[np.uint8]) -> bytes:
    """A (C, H, W) image, losslessly."""
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def files_of(arrays: Arrays, test: str = "test") -> dict[str, bytes]:
    return {
        f"{split}/{CLASSES[label]}/{number:04}.png": png(image)
        for split, images, labels in (
            ("train", arrays.train_images, arrays.train_labels),
            (test, arrays.test_images, arrays.test_labels),
        )
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    }


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_npz(path: Path, arrays: Arrays, **over: NDArray[Any]) -> Path:
    values: dict[str, NDArray[Any]] = {
        "x_train": arrays.train_images,
        "y_train": arrays.train_labels,
        "x_test": arrays.test_images,
        "y_test": arrays.test_labels,
    }
    np.savez(path, allow_pickle=True, **(values | over))
    return path


def assert_packed(path: Path, name: str, arrays: Arrays) -> None:
    found = load(DatasetSpec(name=name), path)
    assert np.array_equal(found.train_images, arrays.train_images)
    assert np.array_equal(found.train_labels, arrays.train_labels)
    assert np.array_equal(found.test_images, arrays.test_images)
    assert np.array_equal(found.test_labels, arrays.test_labels)
