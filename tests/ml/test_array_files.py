"""Files of arrays: NumPy archives, IDX files and what torchvision leaves after a download."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torchvision.datasets as tv
from numpy.typing import NDArray

from overproof.errors import InvalidData
from overproof.ml.datasets import npz
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.packing import pack
from tests.ml.sources import assert_packed, some_arrays, write_folder, write_npz


@pytest.fixture
def arrays() -> Arrays:
    return some_arrays()


# ---- npz --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"x_train": np.full((9, 3, 5, 4), 1.5)}, r"lies in \[1.5, 1.5\]; scale it"),
        ({"x_train": np.full((9, 3, 5, 4), np.nan)}, r"scale it to \[0, 1\]"),
        ({"x_train": np.zeros((9, 3, 5, 4), np.int64)}, "must be uint8 or floats"),
        ({"x_train": np.zeros((9, 3, 5, 3), np.uint8)}, "both axes 1 and 3 could be"),
        ({"x_train": np.zeros((9, 5, 5, 5), np.uint8)}, "no axis could be"),
        ({"x_train": np.zeros((9, 60), np.uint8)}, r"must be \(N, H, W"),
        ({"y_train": np.zeros(9)}, "must be integer class indices, not float64"),
        ({"y_train": np.array([object()] * 9)}, "no archive of plain arrays"),
    ],
)
def test_archive_of_arrays_with_something_wrong_is_refused(
    tmp_path: Path, arrays: Arrays, over: dict[str, NDArray[Any]], message: str
) -> None:
    source = write_npz(tmp_path / "toy.npz", arrays, **over)

    with pytest.raises(InvalidData, match=message):
        npz.read(source)


def test_archive_of_arrays_without_all_names_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", x_train=np.zeros(1), y_test=np.zeros(1))
    (tmp_path / "text.npz").write_text("no archive")

    with pytest.raises(InvalidData, match="lacks x_test, y_train"):
        npz.read(tmp_path / "toy.npz")
    with pytest.raises(InvalidData, match="no archive of plain arrays"):
        npz.read(tmp_path / "text.npz")


# ---- IDX and torchvision ----------------------------------------------------------------------


def _idx(array: NDArray[np.uint8]) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


def _idx_files(arrays: Arrays) -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": _idx(arrays.train_images[:, 0]),
        "train-labels-idx1-ubyte": _idx(arrays.train_labels.astype(np.uint8)),
        "t10k-images-idx3-ubyte": _idx(arrays.test_images[:, 0]),
        "t10k-labels-idx1-ubyte": _idx(arrays.test_labels.astype(np.uint8)),
    }


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_plain_or_gzipped(tmp_path: Path, arrays: Arrays, zipped: bool) -> None:
    for name, content in _idx_files(arrays).items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content) if zipped else b"")
        if not zipped:
            (tmp_path / name).write_bytes(content)

    pack("toy", tmp_path, tmp_path / "packed")

    grey = arrays._replace(
        train_images=arrays.train_images[:, :1], test_images=arrays.test_images[:, :1]
    )
    assert_packed(tmp_path / "packed", "toy", grey)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no IDX file of 1 axes"),
        (b"\0\0\x0d\1\0\0\0\1\0", "is no IDX file"),
        (struct.pack(">BBBBII", 0, 0, 8, 2, 9, 1) + b"\0" * 9, "is no IDX file of 1 axes"),
        (struct.pack(">BBBBH", 0, 0, 8, 1, 9), "is no IDX file"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 9) + b"\0" * 8, "not the 9 bytes it announces"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 9) + b"\0" * 10, "not the 9 bytes it announces"),
    ],
)
def test_idx_file_with_something_wrong_is_refused(
    tmp_path: Path, arrays: Arrays, content: bytes, message: str
) -> None:
    files = _idx_files(arrays) | {"train-labels-idx1-ubyte": content}
    write_folder(tmp_path, files)

    with pytest.raises(InvalidData, match=message):
        pack("toy", tmp_path, tmp_path / "packed")


def test_gzipped_idx_file_that_is_damaged_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    for name, content in _idx_files(arrays).items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])

    with pytest.raises(InvalidData, match="cannot be read"):
        pack("toy", tmp_path, tmp_path / "packed")


def _random_cifar(count: int, seed: int) -> tuple[NDArray[np.uint8], list[int]]:
    random = np.random.default_rng(seed)
    # Pixels whose mean and deviation are about those of CIFAR-10.
    images = random.normal(120, 63, (count, 3, 32, 32)).clip(0, 255).astype(np.uint8)
    return images, [number % 10 for number in range(count)]


@pytest.fixture
def cifar_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small CIFAR-10 as torchvision leaves it, whose checksums torchvision is told."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, content: object) -> list[str]:
        raw = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    def batch(count: int, seed: int) -> dict[str, object]:
        images, labels = _random_cifar(count, seed)
        return {"data": images.reshape(count, -1), "labels": labels}

    monkeypatch.setattr(tv.CIFAR10, "train_list", [write("data_batch_1", batch(20, 0))])
    monkeypatch.setattr(tv.CIFAR10, "test_list", [write("test_batch", batch(10, 1))])
    names = write("batches.meta", {"label_names": [str(number) for number in range(10)]})
    meta = {"filename": names[0], "key": "label_names", "md5": names[1]}
    monkeypatch.setattr(tv.CIFAR10, "meta", meta)
    return tmp_path


def test_cifar_is_read_as_torchvision_leaves_it(cifar_root: Path) -> None:
    facts = pack("cifar-10", cifar_root, cifar_root / "packed")

    train, test = _random_cifar(20, 0), _random_cifar(10, 1)
    expected = Arrays(train[0], np.array(train[1]), test[0], np.array(test[1]))
    assert_packed(cifar_root / "packed", "cifar-10", expected)
    assert facts["mean"] == [0.4914, 0.4822, 0.4465]
    assert facts["mirrors"] is True


def test_cifar_with_altered_files_is_refused_and_nothing_in_it_runs(cifar_root: Path) -> None:
    marker = cifar_root / "owned"

    class Exploit:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {marker}",)

    (cifar_root / "cifar-10-batches-py/data_batch_1").write_bytes(pickle.dumps(Exploit()))

    with pytest.raises(InvalidData, match=r"cifar-10 below .* is unusable: .*download it again"):
        pack("cifar-10", cifar_root, cifar_root / "packed")

    assert not marker.exists()


def test_svhn_is_read_as_torchvision_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    splits = {}
    expected: list[NDArray[Any]] = []
    for split, count in (("train", 20), ("test", 10)):
        images = random.normal(115, 50, (count, 3, 32, 32)).clip(0, 255).astype(np.uint8)
        labels = np.arange(count) % 10
        name = f"{split}_32x32.mat"
        # In these files zero is called ten, and the number of the image comes last.
        stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        scipy.io.savemat(tmp_path / name, {"X": images.transpose(2, 3, 1, 0), "y": stored})
        splits[split] = ["", name, hashlib.md5((tmp_path / name).read_bytes()).hexdigest()]
        expected += [images, labels]
    monkeypatch.setattr(tv.SVHN, "split_list", splits)

    pack("svhn", tmp_path, tmp_path / "packed")

    assert_packed(tmp_path / "packed", "svhn", Arrays(*expected))


def test_folder_with_several_sets_needs_the_name_of_one(cifar_root: Path) -> None:
    (cifar_root / "cifar-100-python").mkdir()

    with pytest.raises(InvalidData, match="holds cifar-10 and cifar-100; add them under these"):
        pack("mine", cifar_root, cifar_root / "packed")
