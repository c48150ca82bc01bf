"""Values that are of known types and mean harm all the same: by their size, sign or number."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from overproof.errors import InvalidData
from overproof.ml.datasets import npz
from overproof.ml.datasets.file_tree import FileTree
from overproof.ml.formats import allowed, content, importing, labels, pickles, weights, zca
from overproof.ml.formats.content import Target, Wishes
from overproof.ml.shapes import ImageFacts

FACTS = ImageFacts(channels=1, size=(2, 2), classes=2, mean=(0.5,), std=(0.25,))


def _nested(depth: int) -> bytes:
    """Instructions that push a tuple of 2 ** depth parts, each level the same one twice."""
    return b")" + b"q\x01h\x01\x86" * depth


def _reads(value: Any) -> Any:
    return pickles.loads(pickle.dumps(value, protocol=2))


# ---- pickles -----------------------------------------------------------------------------------


def test_nested_shape_is_refused_without_being_printed() -> None:
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _nested(60) + b"C\x01btR."

    with pytest.raises(InvalidData, match="impossible shape"):
        pickles.loads(b"\x80\x03" + array)


def test_shape_of_texts_is_refused_without_being_multiplied() -> None:
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    state = b"(K\x01(U\x01xJ\xff\xff\xff\x7ftcnumpy\ndtype\nU\x02f8\x85R\x89C\x00tb."

    with pytest.raises(InvalidData, match="impossible shape"):
        pickles.loads(b"\x80\x03" + array + state)


def test_nested_key_is_refused_without_being_hashed() -> None:
    with pytest.raises(InvalidData, match="tuples in tuples"):
        pickles.loads(b"\x80\x02}" + _nested(60) + b"K\x01s.")


def test_flat_keys_stay() -> None:
    assert _reads({(1, "a"): 2, 3: 4}) == {(1, "a"): 2, 3: 4}


@pytest.mark.parametrize("name", [b"ctorch\nSize\n", b"c_codecs\nencode\n"])
def test_value_handed_on_again_and_again_is_refused(
    name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickles, "MAX_BYTES", 10_000)
    value = b"X\x00\x04\x00\x00" + b"a" * 1024 if b"codecs" in name else b"(" + b"K\x00" * 64 + b"t"
    again = name + b"q\x000" + value + b"\x85q\x010(" + b"h\x00h\x01R" * 20 + b"l."

    with pytest.raises(InvalidData, match="makes more than 10000 bytes"):
        pickles.loads(b"\x80\x02" + again)


class _Type:
    """Pickled, it is a type of numbers with flags of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, ("f8", False, True), (3, ">", None, None, None, -1, -1, 1)


def test_flags_of_a_type_are_not_taken() -> None:
    dtype = _reads(_Type())

    assert not dtype.hasobject
    assert dtype == np.dtype(">f8")


def test_storage_in_an_archive_is_refused() -> None:
    packed = io.BytesIO()
    torch.save(torch.zeros(4), packed)

    with pytest.raises(InvalidData, match="in an archive"):
        allowed._load_from_bytes(packed.getvalue())


# ---- archives ----------------------------------------------------------------------------------


def test_member_of_negative_size_does_not_hide_what_follows(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("0")
    folder.type, folder.size = tarfile.DIRTYPE, -(2**50)
    large = tarfile.TarInfo("0/a.txt")
    large.size = 2**27
    raw = folder.tobuf(tarfile.GNU_FORMAT) + large.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)
    (tmp_path / "set.tgz").write_bytes(gzip.compress(raw))

    with pytest.raises(InvalidData, match="bytes"):
        list(FileTree(tmp_path / "set.tgz").files())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for _ in range(2):
            archive.writestr("0/a.png", b"image")

    with pytest.raises(InvalidData, match=r"0/a\.png' is there twice"):
        list(FileTree(tmp_path / "set.zip").files())


def test_archive_of_texts_instead_of_arrays_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(name, b"text")

    with pytest.raises(InvalidData, match="x_train is no array"):
        npz.read(tmp_path / "set.npz")


# ---- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [10**400, float("inf"), float("nan"), torch.tensor([1 + 1j]), torch.tensor(torch.inf)]
)
def test_number_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidData, match="no finite number"):
        content.number_of(value, "file")


def test_complex_images_are_refused() -> None:
    with pytest.raises(InvalidData, match="complex"):
        content.as_images(torch.zeros(2, 1, 2, 2, dtype=torch.complex64), "file")


def test_class_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidData, match="no class of 2"):
        labels.read([2**70, 0], images=2, classes=2, what="file")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.bfloat16])
def test_classes_of_unusual_types_are_read(dtype: torch.dtype) -> None:
    stored = torch.tensor([0, 1]).to(dtype)

    assert labels.read(stored, images=2, classes=2, what="file").classes.tolist() == [0, 1]


def test_soft_labels_of_two_classes_in_turn_are_refused() -> None:
    rows = torch.tensor([[0.9, 0.1], [0.2, 0.8]] * 2)

    with pytest.raises(InvalidData, match="class after class"):
        labels.read(rows, images=4, classes=2, what="file")


@pytest.mark.parametrize(
    ("mean", "matrix"),
    [
        (torch.zeros(1).expand(2**44), torch.eye(4)),
        (torch.zeros(4).to_sparse(), torch.eye(4)),
        (torch.zeros(4), torch.eye(4, dtype=torch.float64) * 1e-60),
    ],
)
def test_transform_that_cannot_be_undone_is_refused(
    tmp_path: Path, mean: torch.Tensor, matrix: torch.Tensor
) -> None:
    torch.save({"mean": mean, "matrix": matrix}, tmp_path / "zca.pt")

    with pytest.raises(InvalidData):
        zca.read(tmp_path / "zca.pt", FACTS)


def test_name_that_is_no_text_is_part_of_the_digest(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.pt").write_bytes(b"a")
    before = importing._digest(folder)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"b")

    assert importing._digest(folder) != before


def test_infinite_factor_of_a_canvas_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "set.safetensors"
    images, classes = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    save_file({"images": images, "labels": classes, "canvas_factor": torch.tensor(torch.inf)}, file)

    with pytest.raises(InvalidData, match="canvas factor is no finite number"):
        importing.import_set(file, tmp_path / "out", Target(dataset="toy", facts=FACTS), Wishes())


def test_dict_that_holds_itself_many_times_is_not_followed(tmp_path: Path) -> None:
    value: dict[str, Any] = {}
    value.update({f"k{number}": value for number in range(500)})
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps(value, protocol=2))

    with pytest.raises(InvalidData, match="more than 1000 dicts"):
        weights.read(tmp_path / "weights.pkl")
