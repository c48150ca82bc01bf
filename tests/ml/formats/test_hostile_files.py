"""Files that are broken or mean harm: one clear line, nothing runs, nothing is left behind."""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import pickletools
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overproof.errors import InvalidData
from overproof.ml.datasets import file_tree
from overproof.ml.formats import allowed, pickles, torch_files
from overproof.ml.formats.content import Wishes
from overproof.ml.formats.importing import import_set
from tests.ml.formats import published
from tests.ml.formats.published import TARGET
from tests.ml.sources import write_tar


class _Exploit:
    """Unpickled, it runs a command that makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class _Storage:
    """Pickled, it is a storage as tensors have it, but of any bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.content,)


class _Tensor:
    """Pickled, it is a tensor of the storage with any shape."""

    def __init__(self, storage: Any, *shape: Any) -> None:
        self.arguments = (storage, *shape, False, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.arguments


def refusal_of(path: Path, **wishes: Any) -> str:
    """What the importer says; it must leave nothing behind."""
    before = set(path.parent.rglob("*"))
    with pytest.raises(InvalidData) as refusal:
        import_set(path, path.parent / "imported", TARGET, Wishes(**wishes))
    assert set(path.parent.rglob("*")) == before
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    return str(refusal.value)


# ---- code --------------------------------------------------------------------------------------


def test_the_exploit_would_work_on_a_careless_reader(tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    nested = pickle.dumps(_Exploit(marker))

    with pytest.raises(RuntimeError, match="Invalid magic number"):
        pickle.loads(pickle.dumps(_Storage(nested)))  # it has run by then

    assert marker.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "in a storage"])
def test_code_in_a_pickle_does_not_run(tmp_path: Path, protocol: int, nested: bool) -> None:
    marker = tmp_path / "owned"
    harm: Any = _Exploit(marker)
    if nested:
        harm = _Storage(pickle.dumps(harm, protocol))
    value = (published.pixels(), harm)
    (tmp_path / "acc_0.5.pkl").write_bytes(pickle.dumps(value, protocol))

    said = refusal_of(tmp_path / "acc_0.5.pkl")

    assert ("more than numbers" if nested else "names posix.system, which is no data") in said
    assert not marker.exists()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "in a storage"])
def test_code_in_a_file_of_torch_does_not_run(tmp_path: Path, legacy: bool, nested: bool) -> None:
    marker = tmp_path / "owned"
    harm: Any = _Exploit(marker)
    if nested:
        harm = _Storage(pickle.dumps(harm))
    torch.save(
        {"data": [[published.pixels(), published.classes()]], "accs_all_exps": harm},
        tmp_path / "res.pt",
        _use_new_zipfile_serialization=not legacy,
    )

    assert "holds Python objects and was not loaded" in refusal_of(tmp_path / "res.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    "harm",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x04cposix\nsystem\n.",
        b"\x80\x04}\x94(\x8c\x01a\x94cbuiltins\ngetattr\nu.",
        # The state of something on the list: an attribute of the class itself.
        b"\x80\x02cargparse\nNamespace\n}(X\x01\x00\x00\x00aK\x01ub.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}(X\x0c\x00\x00\x00__defaults__N\x85ub.",
        b"\x80\x02]K\x01R.",  # a call of what is no name
        b"\x80\x04\x82\x01.",  # a name by number
        b"\x80\x02Paway\n.",  # an object that lies elsewhere
    ],
)
def test_instructions_that_do_more_than_hold_data_are_refused(tmp_path: Path, harm: bytes) -> None:
    defaults = torch._utils._rebuild_tensor_v2.__defaults__
    (tmp_path / "x.pkl").write_bytes(harm)

    assert "nothing of it was run" in refusal_of(tmp_path / "x.pkl")
    assert torch._utils._rebuild_tensor_v2.__defaults__ == defaults
    assert not hasattr(argparse.Namespace, "a")


# ---- data that is allowed ----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_numbers_of_numpy_and_settings_are_data(tmp_path: Path, protocol: int) -> None:
    value: dict[str, Any] = {
        "accuracy": np.float64(0.5),
        "epochs": np.int64(7),
        "curve": np.arange(6.0).reshape(2, 3),
        "big-endian": np.array([[1.5, 2.5]], dtype=">f4"),
        "args": argparse.Namespace(lr=0.1, milestones=[1, 2]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "transposed": torch.arange(6.0).view(2, 3).t(),
    }
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value, protocol))
    torch.save(value, tmp_path / "x.pt")

    for found in (torch_files.load(tmp_path / "x.pkl"), torch_files.load(tmp_path / "x.pt")):
        assert (found["accuracy"], found["epochs"]) == (0.5, 7)
        assert np.array_equal(found["curve"], value["curve"])
        assert found["big-endian"].tolist() == [[1.5, 2.5]]
        assert vars(found["args"]) == {"lr": 0.1, "milestones": [1, 2]}
        assert found["parameter"].tolist() == [1.0, 1.0]
        assert found["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, (2**40,), (1,)), "with only 4 numbers"),
        ((3, (2,), (1,)), "with only 4 numbers"),
        ((0, (2**40,), (0,)), "with only 4 numbers"),
        ((0, (-1,), (1,)), "impossible shape"),
        ((0, (2,), (1, 1)), "impossible shape"),
        ((0, ("x",), (1,)), "impossible shape"),
    ],
)
def test_tensors_that_claim_more_than_they_hold_are_refused(
    tmp_path: Path, shape: tuple[Any, ...], message: str
) -> None:
    plain = _Storage(_storage_in(pickle.dumps(torch.zeros(4))))
    (tmp_path / "x.pkl").write_bytes(pickle.dumps((_Tensor(plain, *shape), 1)))

    assert message in refusal_of(tmp_path / "x.pkl")


def _storage_in(pickled: bytes) -> bytes:
    """What a pickled tensor says of its storage."""
    [content] = [
        argument
        for _, argument, _ in pickletools.genops(pickled)
        if isinstance(argument, bytes) and len(argument) > 100
    ]
    return content


# ---- files that are something else -------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; fetch it again"),
        (b"<!DOCTYPE html><html>Sign in", "is a web page"),
        (b"\n  <HTML lang=en>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (bytes(100_000), "is filled with zeros"),
        (b"PK\x03\x04" + bytes(100), "is damaged"),
        (b"\x80\x02", "is a damaged pickle"),
        (b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "pickle"),
        (b"\x80\x02r\xff\xff\xff\xff.", "is a damaged pickle"),
        (b"just text", "is of an unknown form"),
    ],
)
@pytest.mark.parametrize("name", ["res_DC.pt", "images_best.pt", "data.pth", "acc_1.pkl"])
def test_what_is_no_tensor_file_is_named_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    published.write_mtt(tmp_path)
    (tmp_path / name).write_bytes(content)

    assert message in refusal_of(tmp_path / name)


@pytest.mark.parametrize("name", ["set.npz", "set.safetensors", "set.tar", "set.zip", "set.bin"])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", bytes(5000), b"\xff" * 8 + b"{}", b"PK\x03\x04" + bytes(50), b"\x1f\x8b\x08"],
)
def test_every_kind_of_file_may_be_broken(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    refusal_of(tmp_path / name)


def test_path_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")

    with pytest.raises(InvalidData, match="does not exist"):
        import_set(tmp_path / "absent.pt", tmp_path / "into", TARGET, Wishes())
    assert "is no regular file" in refusal_of(tmp_path / "pipe.pt")
    with pytest.raises(InvalidData, match="no form is called 'tfrecord'; known: npz, safetensors"):
        import_set(tmp_path, tmp_path / "into", TARGET, Wishes(format="tfrecord"))


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    harm = np.array([_Exploit(marker)], dtype=object)
    np.savez(tmp_path / "set.npz", allow_pickle=True, images=harm, labels=np.zeros(1))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(np.array(["a"], dtype=object)))

    assert "no archive of plain arrays" in refusal_of(tmp_path / "set.npz")
    assert "type O8" in refusal_of(tmp_path / "a.pkl")
    assert not marker.exists()


# ---- sizes -------------------------------------------------------------------------------------


def test_limits_hold_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = published.write_dc(tmp_path)
    with (
        zipfile.ZipFile(path) as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, bytes(10**7) if "data/" in name else plain.read(name))
    monkeypatch.setattr(allowed, "MAX_BYTES", (tmp_path / "bomb.pt").stat().st_size)

    assert "at most" in refusal_of(tmp_path / "bomb.pt")
    monkeypatch.setattr(allowed, "MAX_BYTES", 5)
    assert "has" in refusal_of(path)


def test_header_that_claims_a_huge_array_is_refused(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 3, 8), }"
    npy = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("images.npy", npy)
        archive.writestr("labels.npy", npy)
    length = (2**62).to_bytes(8, "little")
    (tmp_path / "set.safetensors").write_bytes(length + b'{"images": {}}')

    assert "no archive of plain arrays" in refusal_of(tmp_path / "set.npz")
    assert "no safetensors file" in refusal_of(tmp_path / "set.safetensors")


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "zip"])
def test_archive_that_would_fill_the_disk_is_refused_by_its_first_members(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tree, "_SMALL", 2**16)
    files = {f"00000/class00000_id{i:05d}.png": bytes(10**6) for i in range(3)}
    path = tmp_path / ("bomb.zip" if mode == "zip" else "bomb.tar")
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        write_tar(path, files, mode)

    assert "unpacks to more than 100 times its size" in refusal_of(path)


# ---- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil.png", "/etc/evil.png", "a/../../evil.png", "a\\b.png"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_that_leave_the_archive_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / f"set.{kind}"
    if kind == "tar":
        write_tar(path, {name: b"x"})
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"x")

    assert "leaves the archive" in refusal_of(path)


def test_links_are_refused(tmp_path: Path) -> None:
    root = published.write_folder(tmp_path / "images", published.RDED)
    (root / "00000" / "class00000_id00009.png").symlink_to("/etc/passwd")
    link = zipfile.ZipInfo("00000/class00000_id00000.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        member = tarfile.TarInfo("00000/class00000_id00000.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)

    for path in (root, tmp_path / "set.zip", tmp_path / "set.tar"):
        assert "is a link" in refusal_of(path)


def test_zip_of_images_is_read_like_a_folder(tmp_path: Path) -> None:
    root = published.write_folder(tmp_path / "images", published.SRE2L)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in root.rglob("*.png"):
            archive.write(path, path.relative_to(tmp_path).as_posix())

    from_folder = import_set(root, tmp_path / "a", TARGET, Wishes())
    from_zip = import_set(tmp_path / "set.zip", tmp_path / "b", TARGET, Wishes())

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert from_folder["channel_means"] == from_zip["channel_means"]


# ---- anything at all ---------------------------------------------------------------------------

_WRITERS: dict[str, Callable[[Path], Path]] = {
    "dc": published.write_dc,
    "idc": published.write_idc,
    "idm": published.write_idm,
    "dd": published.write_dd,
    "npz": published.write_npz,
    "mtt": lambda folder: published.write_mtt(folder) / "images_best.pt",
}


def _tolerated(path: Path) -> None:
    """Read, or refused by an error of ours."""
    try:
        import_set(path, path.parent / "imported", TARGET, Wishes(canvas=1, normalisation="dc"))
    except InvalidData as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["x.pt", "x.pkl", "x.npz", "x.safetensors", "x.tar", "x.zip"]),
    st.sampled_from([b"", b"\x80\x02", b"\x80\x04\x95", b"PK\x03\x04", b"\x08" + bytes(7) + b"{"]),
    st.binary(max_size=200),
)
def test_no_bytes_raise_anything_but_our_errors(name: str, head: bytes, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(head + rest)
        _tolerated(Path(folder) / name)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(_WRITERS)), st.floats(0, 1), st.binary(max_size=6))
def test_no_damage_raises_anything_but_our_errors(form: str, where: float, put: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _WRITERS[form](Path(folder))
        content = path.read_bytes()
        at = int(where * len(content))
        rest = content[at + len(put) :] if put else b""  # nothing put in: cut there
        path.write_bytes(content[:at] + put + rest)
        _tolerated(path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_no_pickle_raises_anything_but_our_errors(body: bytes) -> None:
    with contextlib.suppress(InvalidData):
        pickles.loads(b"\x80\x04" + body + b".")
