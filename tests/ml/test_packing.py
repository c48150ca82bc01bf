"""What users bring, in every form that is recognised, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torchvision.datasets as tv
from numpy.typing import NDArray
from PIL import Image

from overproof.core.spec import DatasetSpec
from overproof.errors import InvalidData
from overproof.ml.datasets import file_tree, image_folder, npz
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.base import load
from overproof.ml.datasets.packing import pack

CLASSES = ("cat", "dog", "eel")


@pytest.fixture
def arrays() -> Arrays:
    """Nine training and six test images in colour, 5 × 4 pixels, in the order of their classes."""
    random = np.random.default_rng(0)
    return Arrays(
        random.integers(0, 256, (9, 3, 5, 4), dtype=np.uint8),
        np.repeat(np.arange(3), 3),
        random.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8),
        np.repeat(np.arange(3), 2),
    )


def _png(image: NDArray[np.uint8]) -> bytes:
    """A (C, H, W) image, losslessly."""
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _files(arrays: Arrays, test: str = "test") -> dict[str, bytes]:
    return {
        f"{split}/{CLASSES[label]}/{number:04}.png": _png(image)
        for split, images, labels in (
            ("train", arrays.train_images, arrays.train_labels),
            (test, arrays.test_images, arrays.test_labels),
        )
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    }


def _write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def _write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def _write_npz(path: Path, arrays: Arrays, **over: NDArray[Any]) -> Path:
    values: dict[str, NDArray[Any]] = {
        "x_train": arrays.train_images,
        "y_train": arrays.train_labels,
        "x_test": arrays.test_images,
        "y_test": arrays.test_labels,
    }
    np.savez(path, allow_pickle=True, **(values | over))
    return path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _assert_packed(path: Path, name: str, arrays: Arrays) -> None:
    found = load(DatasetSpec(name=name), path)
    assert np.array_equal(found.train_images, arrays.train_images)
    assert np.array_equal(found.train_labels, arrays.train_labels)
    assert np.array_equal(found.test_images, arrays.test_images)
    assert np.array_equal(found.test_labels, arrays.test_labels)


# ---- one content, many forms -------------------------------------------------------------------


def _as_folder(root: Path, arrays: Arrays) -> Path:
    return _write_folder(root / "toy", _files(arrays))


def _as_folder_with_val(root: Path, arrays: Arrays) -> Path:
    return _write_folder(root / "toy", _files(arrays, test="val"))


def _as_tar(root: Path, arrays: Arrays) -> Path:
    return _write_tar(root / "toy.tar", _files(arrays))


def _as_nested_tar_gz_in_another_order(root: Path, arrays: Arrays) -> Path:
    extra = {"toy/README.md": b"about", "toy/train/cat/.DS_Store": b"junk"}
    files = {f"./toy/{name}": content for name, content in _files(arrays).items()} | extra
    return _write_tar(root / "toy.tar.gz", dict(reversed(files.items())), "w:gz")


def _as_npz(root: Path, arrays: Arrays) -> Path:
    return _write_npz(root / "toy.npz", arrays)


def _as_npz_of_floats_with_channels_last(root: Path, arrays: Arrays) -> Path:
    return _write_npz(
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
    pack("toy", _write_npz(tmp_path / "reference.npz", arrays), reference)

    facts = pack("toy", write(tmp_path, arrays), packed)

    _assert_packed(packed, "toy", arrays)
    assert _sha256(packed) == _sha256(reference)
    assert (facts["classes"], facts["shape"]) == (3, [3, 5, 4])
    assert (facts["training_images"], facts["test_images"]) == (9, 6)


def test_mean_and_deviation_are_those_of_the_training_pixels(
    tmp_path: Path, arrays: Arrays
) -> None:
    facts = pack("toy", _write_npz(tmp_path / "toy.npz", arrays), tmp_path / "toy", mirrors=True)

    pixels = arrays.train_images / 255
    assert facts["mean"] == pytest.approx(pixels.mean(axis=(0, 2, 3)), abs=5e-5)
    assert facts["std"] == pytest.approx(pixels.std(axis=(0, 2, 3)), abs=5e-5)
    assert facts["mirrors"] is True


def test_many_images_in_tiny_batches_all_find_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "_BATCH", 2)
    random = np.random.default_rng(1)
    many = Arrays(
        random.integers(0, 256, (120, 3, 2, 2), dtype=np.uint8),
        np.repeat(np.arange(3), 40),
        random.integers(0, 256, (30, 3, 2, 2), dtype=np.uint8),
        np.repeat(np.arange(3), 10),
    )

    pack("toy", _as_tar(tmp_path, many), tmp_path / "toy")

    _assert_packed(tmp_path / "toy", "toy", many)


# ---- images ------------------------------------------------------------------------------------


def test_grey_images_stay_grey_only_if_all_are(tmp_path: Path, arrays: Arrays) -> None:
    grey = Arrays(
        arrays.train_images[:, :1],
        arrays.train_labels,
        arrays.test_images[:, :1],
        arrays.test_labels,
    )
    files = _files(grey)

    all_grey = image_folder.read(_write_tar(tmp_path / "grey.tar", files))
    files["test/eel/0005.png"] = _png(arrays.test_images[5])
    mixed = image_folder.read(_write_tar(tmp_path / "mixed.tar", files))

    assert np.array_equal(all_grey.train_images, grey.train_images)
    assert np.array_equal(mixed.train_images, np.repeat(grey.train_images, 3, axis=1))
    assert np.array_equal(mixed.test_images[5], arrays.test_images[5])


def test_images_of_many_sizes_are_scaled_when_a_size_is_given(
    tmp_path: Path, arrays: Arrays
) -> None:
    files = _files(arrays)
    wide = np.zeros((3, 8, 16), dtype=np.uint8)
    wide[:, :, 4:12] = 200  # the square in the middle
    files["train/cat/0000.png"] = _png(wide)
    source = _write_folder(tmp_path / "toy", files)

    with pytest.raises(InvalidData, match="has 4 × 5 pixels, others 16 × 8; give a size"):
        image_folder.read(source)
    scaled = image_folder.read(source, size=4)

    assert scaled.train_images.shape == (9, 3, 4, 4)
    assert np.all(scaled.train_images[0] == 200)


def test_jpeg_is_decoded_close_to_its_pixels(tmp_path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 5), (200, 100, 50)).save(buffer, "JPEG", quality=95)
    files = _files(arrays) | {"train/cat/0000.jpg": buffer.getvalue()}
    del files["train/cat/0000.png"]

    found = image_folder.read(_write_folder(tmp_path / "toy", files))

    expected = np.array([200, 100, 50]).reshape(3, 1, 1)
    assert np.abs(found.train_images[0].astype(int) - expected).max() <= 3


def _png_of_16_bits() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((5, 4), dtype=np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/cat/0000.png", b"no image", r"train/cat/0000\.png cannot be decoded"),
        ("train/cat/0001.png", b"\x89PNG\r\n\x1a\n cut", r"cannot be decoded"),
        ("train/cat/0002.png", _png_of_16_bits(), "convert it to 8 bits"),
        ("train/cat/notes.txt", b"notes", r"notes\.txt is neither JPEG nor PNG"),
        ("train/fox/0000.png", b"", "1 classes have only training or only test images, e.g. fox"),
        ("val/cat/0000.png", b"", "in either test/<class>/ or val/<class>/"),
        ("copy/train/cat/0000.png", b"", "holds several data sets, in ., copy"),
    ],
)
def test_folder_with_something_wrong_is_refused_by_its_name(
    tmp_path: Path, arrays: Arrays, name: str, content: bytes, message: str
) -> None:
    source = _write_folder(tmp_path / "toy", _files(arrays) | {name: content})

    with pytest.raises(InvalidData, match=message):
        pack("toy", source, tmp_path / "packed")

    assert not (tmp_path / "packed").exists()


def test_images_with_too_many_pixels_or_bytes_are_refused_before_they_are_decoded(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _as_folder(tmp_path, arrays)

    with monkeypatch.context() as limited:
        limited.setattr(image_folder, "_MAX_PIXELS", 19)
        with pytest.raises(InvalidData, match="more than 19 pixels"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(image_folder, "_MAX_FILE_BYTES", 50)
        with pytest.raises(InvalidData, match="bytes; scale it down"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(image_folder, "_MAX_FILES", 5)
        with pytest.raises(InvalidData, match="more than 5 files"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(image_folder, "_MAX_DECODED_BYTES", 100)
        with pytest.raises(InvalidData, match="give a smaller size"):
            image_folder.read(source)


# ---- archives that mean harm -------------------------------------------------------------------


def _special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (_special("/train/cat/9.png", tarfile.REGTYPE), "leaves the archive"),
        (_special("train/../../9.png", tarfile.REGTYPE), "leaves the archive"),
        (_special("train/cat/9.png", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (_special("train/cat/9.png", tarfile.LNKTYPE, "train/cat/0000.png"), "is a link"),
        (_special("train/cat/9.png", tarfile.FIFOTYPE), "is a link, a device"),
        (_special("train/cat/0000.png", tarfile.REGTYPE), r"holds train/cat/0000\.png twice"),
    ],
)
def test_archive_with_a_harmful_member_is_refused(
    tmp_path: Path, arrays: Arrays, member: tarfile.TarInfo, message: str
) -> None:
    source = _as_tar(tmp_path, arrays)
    with tarfile.open(source, "a") as archive:
        archive.addfile(member)

    with pytest.raises(InvalidData, match=message):
        pack("toy", source, tmp_path / "packed")


def test_links_in_a_folder_are_refused(tmp_path: Path, arrays: Arrays) -> None:
    source = _as_folder(tmp_path, arrays)
    (source / "train/cat/9.png").symlink_to("/etc/passwd")

    with pytest.raises(InvalidData, match=r"9\.png is a link"):
        pack("toy", source, tmp_path / "packed")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_archive_that_is_cut_short_is_refused(tmp_path: Path, arrays: Arrays, share: float) -> None:
    source = _write_tar(tmp_path / "toy.tar.gz", _files(arrays), "w:gz")
    source.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])

    with pytest.raises(InvalidData, match=r"toy\.tar\.gz"):
        pack("toy", source, tmp_path / "packed")


def test_files_are_read_in_the_order_of_their_offsets(tmp_path: Path, arrays: Arrays) -> None:
    tree = file_tree.FileTree(_as_tar(tmp_path, arrays))
    files = list(tree.files())

    read = [file for file, _ in tree.read(reversed(files))]

    assert read == files


# ---- npz ---------------------------------------------------------------------------------------


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
    source = _write_npz(tmp_path / "toy.npz", arrays, **over)

    with pytest.raises(InvalidData, match=message):
        npz.read(source)


def test_archive_of_arrays_without_all_names_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", x_train=np.zeros(1), y_test=np.zeros(1))
    (tmp_path / "text.npz").write_text("no archive")

    with pytest.raises(InvalidData, match="lacks x_test, y_train"):
        npz.read(tmp_path / "toy.npz")
    with pytest.raises(InvalidData, match="no archive of plain arrays"):
        npz.read(tmp_path / "text.npz")


# ---- IDX and torchvision -----------------------------------------------------------------------


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
    _assert_packed(tmp_path / "packed", "toy", grey)


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
    _write_folder(tmp_path, files)

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
    _assert_packed(cifar_root / "packed", "cifar-10", expected)
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

    _assert_packed(tmp_path / "packed", "svhn", Arrays(*expected))


def test_folder_with_several_sets_needs_the_name_of_one(cifar_root: Path) -> None:
    (cifar_root / "cifar-100-python").mkdir()

    with pytest.raises(InvalidData, match="holds cifar-10 and cifar-100; add them under these"):
        pack("mine", cifar_root, cifar_root / "packed")


# ---- names of the catalog ----------------------------------------------------------------------


def test_images_of_another_shape_do_not_take_a_known_name(tmp_path: Path, arrays: Arrays) -> None:
    with pytest.raises(InvalidData, match=r"cifar-10 has images of \(3, 32, 32\)"):
        pack("cifar-10", _write_npz(tmp_path / "toy.npz", arrays), tmp_path / "packed")


def test_images_of_another_mean_do_not_take_a_known_name(tmp_path: Path) -> None:
    x = np.full((10, 28, 28), 128, dtype=np.uint8)
    source = tmp_path / "toy.npz"
    np.savez(source, x_train=x, y_train=np.arange(10), x_test=x, y_test=np.arange(10))

    with pytest.raises(InvalidData, match=r"mnist has mean .*; add them under another name"):
        pack("mnist", source, tmp_path / "packed")


def test_absent_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="does not exist"):
        pack("toy", tmp_path / "absent", tmp_path / "packed")


# ---- real data ---------------------------------------------------------------------------------


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
