from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overproof.artifacts.tensors import read_tensors, write_tensors
from overproof.errors import MalformedArtifact

DTYPES = st.sampled_from(["bool", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])


@settings(deadline=None)  # a busy disk is no failure
@given(
    array=arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
def test_any_array_comes_back_with_shape_dtype_and_bits(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[Any, Any]
) -> None:
    path = tmp_path_factory.mktemp("tensors") / "file"

    write_tensors(path, {"x": array})
    tensors, _ = read_tensors(path)

    assert tensors["x"].shape == array.shape
    assert tensors["x"].dtype == array.dtype
    assert tensors["x"].tobytes() == array.tobytes()


def test_memory_layout_does_not_matter(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)

    write_tensors(tmp_path / "file", {"transposed": matrix.T, "strided": matrix[:, ::2]})
    tensors, _ = read_tensors(tmp_path / "file")

    np.testing.assert_array_equal(tensors["transposed"], matrix.T)
    np.testing.assert_array_equal(tensors["strided"], matrix[:, ::2])


def test_metadata_comes_back(tmp_path: Path) -> None:
    metadata = {"names": '["ä", "b"]', "": "empty key", "x": ""}

    write_tensors(tmp_path / "file", {"x": np.zeros(1)}, metadata)

    assert read_tensors(tmp_path / "file")[1] == metadata


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    tensors = {name: np.full(3, ord(name)) for name in "abcdef"}
    metadata = {name: name for name in "abcdef"}
    backwards = dict(reversed(metadata.items()))

    contents = set()
    for number in range(5):
        write_tensors(tmp_path / "file", tensors, metadata if number % 2 else backwards)
        contents.add((tmp_path / "file").read_bytes())

    assert len(contents) == 1


def test_file_of_another_tool_can_be_read(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt", "by": "another tool"},
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        }
    ).encode()
    (tmp_path / "file").write_bytes(
        struct.pack("<Q", len(header)) + header + np.array([1, 2], "<f4").tobytes()
    )

    tensors, metadata = read_tensors(tmp_path / "file")

    assert tensors["w"].tolist() == [1.0, 2.0]
    assert metadata == {"format": "pt", "by": "another tool"}


def _with_header(value: Any, data: bytes) -> bytes:
    header = json.dumps(value).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 7,
        b"not a tensor file at all",
        pickle.dumps({"x": [1, 2, 3]}),
        _with_header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"short"),
        _with_header({"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}, b"x" * 8),
        _with_header({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"xx"),
        _with_header({"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
        _with_header({"__metadata__": {"overproof": "not JSON"}}, b""),
        _with_header({"__metadata__": {"overproof": "[1]"}}, b""),
    ],
    ids=[
        "empty",
        "header cut",
        "text",
        "pickle",
        "data cut",
        "shape beyond data",
        "bfloat16",
        "float8",
        "metadata no JSON",
        "metadata no mapping",
    ],
)
def test_file_that_is_something_else_is_malformed(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file").write_bytes(raw)

    with pytest.raises(MalformedArtifact, match="file is not a readable safetensors file"):
        read_tensors(tmp_path / "file")


def test_flipped_length_is_malformed(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"x": np.zeros(3)})
    raw = bytearray((tmp_path / "file").read_bytes())
    raw[0] ^= 0x40
    (tmp_path / "file").write_bytes(raw)

    with pytest.raises(MalformedArtifact):
        read_tensors(tmp_path / "file")


def test_missing_file_is_not_malformed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "absent")


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.array(["text"]), np.array([1 + 2j])],
    ids=["objects", "text", "complex"],
)
def test_array_of_anything_but_numbers_is_refused(
    tmp_path: Path, array: np.ndarray[Any, Any]
) -> None:
    with pytest.raises(TypeError, match="store numbers only"):
        write_tensors(tmp_path / "file", {"x": array})

    assert not (tmp_path / "file").exists()


def test_metadata_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="store text only"):
        write_tensors(tmp_path / "file", {}, {"count": 3})  # type: ignore[dict-item]


def test_name_that_the_format_keeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use another name"):
        write_tensors(tmp_path / "file", {"__metadata__": np.zeros(1)})
