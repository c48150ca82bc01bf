"""One content gives one packed file, whatever form it comes in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.base import load
from overproof.ml.datasets.packing import pack
from tests.ml.sources import (
    assert_packed,
    files_of,
    some_arrays,
    write_folder,
    write_npz,
    write_tar,
)


@pytest.fixture
def arrays() -> Arrays:
    return some_arrays()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- one content, many forms ------------------------------------------------------------------


def _as_folder(root: Path, arrays: Arrays) -> Path:
    return write_folder(root / "toy", files_of(arrays))


def _as_folder_with_val(root: Path, arrays: Arrays) -> Path:
    return write_folder(root / "toy", files_of(arrays, test="val"))


def _as_tar(root: Path, arrays: Arrays) -> Path:
    return write_tar(root / "toy.tar", files_of(arrays))


def _as_nested_tar_gz_in_another_order(root: Path, arrays: Arrays) -> Path:
    extra = {"toy/README.md": b"about", "toy/train/cat/.DS_Store": b"junk"}
    files = {f"./toy/{name}": content for name, content in files_of(arrays).items()} | extra
    return write_tar(root / "toy.tar.gz", dict(reversed(files.items())), "w:gz")


def _as_npz(root: Path, arrays: Arrays) -> Path:
    return write_npz(root / "toy.npz", arrays)


def _as_npz_of_floats_with_channels_last(root: Path, arrays: Arrays) -> Path:
    return write_npz(
        root / "toy.npz",
        arrays,
        x_train=arrays.train_images.transpose(0, 2, 3, 1) / np.float32(255),
        x_test=arrays.test_images.transpose(0, 2, 3, 1) / 255,
        y_train=arrays.train_labels[:, None].astype(np.uint8),
    )


@pytest.mark.parametrize(
    "write",
    [
        _as_folder,
        _as_folder_with_val,
        _as_tar,
        _as_nested_tar_gz_in_another_order,
        _as_npz,
        _as_npz_of_floats_with_channels_last,
    ],
)
def test_equal_contents_give_equal_bytes_in_every_form(
    tmp_path: Path, arrays: Arrays, write: Callable[[Path, Arrays], Path]
) -> None:
    reference, packed = tmp_path / "reference", tmp_path / "packed"
    pack("toy", write_npz(tmp_path / "reference.npz", arrays), reference)

    facts = pack("toy", write(tmp_path, arrays), packed)

    assert_packed(packed, "toy", arrays)
    assert _sha256(packed) == _sha256(reference)
    assert (facts["classes"], facts["shape"]) == (3, [3, 5, 4])
    assert (facts["training_images"], facts["test_images"]) == (9, 6)


def test_mean_and_deviation_are_those_of_the_training_pixels(
    tmp_path: Path, arrays: Arrays
) -> None:
    facts = pack("toy", write_npz(tmp_path / "toy.npz", arrays), tmp_path / "toy", mirrors=True)

    pixels = arrays.train_images / 255
    assert facts["mean"] == pytest.approx(pixels.mean(axis=(0, 2, 3)), abs=5e-5)
    assert facts["std"] == pytest.approx(pixels.std(axis=(0, 2, 3)), abs=5e-5)
    assert facts["mirrors"] is True


# ---- names of the catalog ----------------------------------------------------------------------


def test_images_of_another_shape_do_not_take_a_known_name(tmp_path: Path, arrays: Arrays) -> None:
    with pytest.raises(InvalidData, match=r"cifar-10 has images of \(3, 32, 32\)"):
        pack("cifar-10", write_npz(tmp_path / "toy.npz", arrays), tmp_path / "packed")


def test_images_of_another_mean_do_not_take_a_known_name(tmp_path: Path) -> None:
    x = np.full((10, 28, 28), 128, dtype=np.uint8)
    source = tmp_path / "toy.npz"
    np.savez(source, x_train=x, y_train=np.arange(10), x_test=x, y_test=np.arange(10))

    with pytest.raises(InvalidData, match=r"mnist has mean .*; add them under another name"):
        pack("mnist", source, tmp_path / "packed")


def test_absent_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="does not exist"):
        pack("toy", tmp_path / "absent", tmp_path / "packed")


# ---- real data --------------------------------------------------------------------------------


def test_fashion_mnist_of_the_system_is_packed(tmp_path: Path) -> None:
    source = Path("/usr/share/datasets/fashion-mnist")
    if not source.is_dir():
        pytest.skip("install the Debian package dataset-fashion-mnist")

    facts = pack("fashion-mnist", source, tmp_path / "packed")

    assert (facts["training_images"], facts["test_images"]) == (60_000, 10_000)
    found = load(DatasetSpec(name="fashion-mnist"), tmp_path / "packed")
    assert found.train_labels.bincount().tolist() == [6_000] * 10
    mean = float(found.train_images.double().mean()) / 255
    assert mean == pytest.approx(0.2861, abs=2e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cifar10_of_60000_files_is_packed(tmp_path: Path) -> None:
    source = os.environ.get("OVERPROOF_TEST_CIFAR10", "")
    if not source:
        pytest.skip("OVERPROOF_TEST_CIFAR10 is not the path of an image folder or a tar of one")

    facts = pack("cifar-10", Path(source), tmp_path / "packed")

    assert (facts["training_images"], facts["test_images"]) == (50_000, 10_000)
    found = load(DatasetSpec(name="cifar-10", subset_per_class=500), tmp_path / "packed")
    assert found.train_labels.bincount().tolist() == [500] * 10
    pixels = found.train_images.double() / 255
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx(found.mean, abs=0.01)
    assert pixels.std(dim=(0, 2, 3)).tolist() == pytest.approx(found.std, abs=0.01)
