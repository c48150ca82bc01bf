"""Folders and archives of images: what is made of them, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overproof.errors import InvalidData
from overproof.ml.datasets import file_tree, image_files, image_folder
from overproof.ml.datasets.arrays import Arrays
from overproof.ml.datasets.packing import pack
from tests.ml.sources import assert_packed, files_of, png, some_arrays, write_folder, write_tar


@pytest.fixture
def arrays() -> Arrays:
    return some_arrays()


def test_many_images_in_tiny_batches_all_find_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_BATCH", 2)
    random = np.random.default_rng(1)
    many = Arrays(
        random.integers(0, 256, (120, 3, 2, 2), dtype=np.uint8),
        np.repeat(np.arange(3), 40),
        random.integers(0, 256, (30, 3, 2, 2), dtype=np.uint8),
        np.repeat(np.arange(3), 10),
    )

    pack("toy", write_tar(tmp_path / "toy.tar", files_of(many)), tmp_path / "toy")

    assert_packed(tmp_path / "toy", "toy", many)


def test_grey_images_stay_grey_only_if_all_are(tmp_path: Path, arrays: Arrays) -> None:
    grey = Arrays(
        arrays.train_images[:, :1],
        arrays.train_labels,
        arrays.test_images[:, :1],
        arrays.test_labels,
    )
    files = files_of(grey)

    all_grey = image_folder.read(write_tar(tmp_path / "grey.tar", files))
    files["test/eel/0005.png"] = png(arrays.test_images[5])
    mixed = image_folder.read(write_tar(tmp_path / "mixed.tar", files))

    assert np.array_equal(all_grey.train_images, grey.train_images)
    assert np.array_equal(mixed.train_images, np.repeat(grey.train_images, 3, axis=1))
    assert np.array_equal(mixed.test_images[5], arrays.test_images[5])


def test_images_of_many_sizes_are_scaled_when_a_size_is_given(
    tmp_path: Path, arrays: Arrays
) -> None:
    files = files_of(arrays)
    wide = np.zeros((3, 8, 16), dtype=np.uint8)
    wide[:, :, 4:12] = 200  # the square in the middle
    files["train/cat/0000.png"] = png(wide)
    source = write_folder(tmp_path / "toy", files)

    with pytest.raises(InvalidData, match="has 4 × 5 pixels, others 16 × 8; give a size"):
        image_folder.read(source)
    scaled = image_folder.read(source, size=4)

    assert scaled.train_images.shape == (9, 3, 4, 4)
    assert np.all(scaled.train_images[0] == 200)


def test_jpeg_is_decoded_close_to_its_pixels(tmp_path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 5), (200, 100, 50)).save(buffer, "JPEG", quality=95)
    files = files_of(arrays) | {"train/cat/0000.jpg": buffer.getvalue()}
    del files["train/cat/0000.png"]

    found = image_folder.read(write_folder(tmp_path / "toy", files))

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
    source = write_folder(tmp_path / "toy", files_of(arrays) | {name: content})

    with pytest.raises(InvalidData, match=message):
        pack("toy", source, tmp_path / "packed")

    assert not (tmp_path / "packed").exists()


def test_images_with_too_many_pixels_or_bytes_are_refused_before_they_are_decoded(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "toy", files_of(arrays))

    with monkeypatch.context() as limited:
        limited.setattr(image_files, "_MAX_PIXELS", 19)
        with pytest.raises(InvalidData, match="more than 19 pixels"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(image_files, "_MAX_FILE_BYTES", 50)
        with pytest.raises(InvalidData, match="bytes; scale it down"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(file_tree, "MAX_FILES", 5)
        with pytest.raises(InvalidData, match="more than 5 files"):
            image_folder.read(source)
    with monkeypatch.context() as limited:
        limited.setattr(image_files, "_MAX_DECODED_BYTES", 100)
        with pytest.raises(InvalidData, match="give a smaller size"):
            image_folder.read(source)


# ---- archives that mean harm ------------------------------------------------------------------


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
    source = write_tar(tmp_path / "toy.tar", files_of(arrays))
    with tarfile.open(source, "a") as archive:
        archive.addfile(member)

    with pytest.raises(InvalidData, match=message):
        pack("toy", source, tmp_path / "packed")


def test_links_in_a_folder_are_refused(tmp_path: Path, arrays: Arrays) -> None:
    source = write_folder(tmp_path / "toy", files_of(arrays))
    (source / "train/cat/9.png").symlink_to("/etc/passwd")

    with pytest.raises(InvalidData, match=r"9\.png is a link"):
        pack("toy", source, tmp_path / "packed")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_archive_that_is_cut_short_is_refused(tmp_path: Path, arrays: Arrays, share: float) -> None:
    source = write_tar(tmp_path / "toy.tar.gz", files_of(arrays), "w:gz")
    source.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])

    with pytest.raises(InvalidData, match=r"toy\.tar\.gz"):
        pack("toy", source, tmp_path / "packed")


def test_files_are_read_in_the_order_of_their_offsets(tmp_path: Path, arrays: Arrays) -> None:
    tree = file_tree.FileTree(write_tar(tmp_path / "toy.tar", files_of(arrays)))
    files = list(tree.files())

    read = [file for file, _ in tree.read(reversed(files))]

    assert read == files
