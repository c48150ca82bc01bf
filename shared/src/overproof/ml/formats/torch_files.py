"""Values in files of torch and in pickles: limits first, then numbers alone; nothing in it runs."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overproof.errors import InvalidData
from overproof.ml.formats import allowed, pickles

_HEAD = 512
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # what files of torch before 1.6 begin with
_WEB = (b"<!doctype", b"<html", b"<?xml", b"<head")


def load(path: Path, *, what: str = "file") -> Any:
    """The value in a file that `torch.save` or `pickle.dump` wrote.

    Tensors, numbers, texts, lists and dicts, arrays and numbers of numpy, settings of argparse.

    Args:
        path: the file.
        what: what the messages call it.

    Returns:
        The value, tensors on the CPU, numbers of numpy as Python's where it came from a pickle.

    Raises:
        InvalidData: the file is absent, too large, no such file, damaged, or holds anything else.
            One line.
    """
    head = read_head(path, what=what)
    if head.startswith(b"PK") or head.startswith(_LEGACY):
        return _load_torch(path, what)
    if not head.startswith(b"\x80") and head[:1] not in b"(cl}]":
        raise InvalidData(f"{what} {path} is {said_of(head)}, neither torch nor a pickle")
    try:
        return pickles.loads(path.read_bytes())
    except InvalidData as error:
        raise InvalidData(f"{what} {path} {error}; nothing of it was run") from None
    except OSError as error:
        raise InvalidData(f"{what} {path} cannot be read: {error.strerror}") from None


def read_head(path: Path, *, what: str = "file") -> bytes:
    """The first bytes of a file.

    Raises:
        InvalidData: the file is absent, no regular file, empty, or larger than `allowed.MAX_BYTES`.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InvalidData(f"{what} {path} is no regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InvalidData(f"{what} {path} cannot be read: {error.strerror}") from None
    if not head:
        raise InvalidData(f"{what} {path} is empty; fetch it again")
    if size > allowed.MAX_BYTES:
        raise InvalidData(f"{what} {path} has {size} bytes; at most {allowed.MAX_BYTES} are read")
    return head


def said_of(head: bytes) -> str:
    """What a file with such first bytes probably is instead."""
    if head.lstrip().lower().startswith(_WEB):
        return "a web page (the download failed; fetch it again)"
    if head.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS (fetch the file that it points to)"
    if not any(head):
        return "filled with zeros (the download failed; fetch it again)"
    return "of an unknown form"


def unpacked_size(path: Path, *, what: str) -> int:
    """Bytes to which the members of a zip archive unpack.

    Raises:
        InvalidData: it is no archive, or would unpack to more than `allowed.MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise InvalidData(f"{what} {path} is no readable archive: {error}") from None
    if size > allowed.MAX_BYTES:
        raise InvalidData(
            f"{what} {path} unpacks to {size} bytes; at most {allowed.MAX_BYTES} are read"
        )
    return size


def _load_torch(path: Path, what: str) -> Any:
    if zipfile.is_zipfile(path):
        unpacked_size(path, what=what)
    try:
        return _weights_only(path)
    except pickle.UnpicklingError:
        pass  # numbers of numpy or settings of argparse, or worse
    except Exception as error:  # a damaged file raises whatever its instructions lead to
        raise InvalidData(f"{what} {path} is damaged: {_line(error)}") from None
    try:
        # For the whole process, so one reader at a time; every name is one of data.
        with torch.serialization.safe_globals(_safe()):
            return _weights_only(path)
    except InvalidData as error:
        raise InvalidData(f"{what} {path} {error}; nothing of it was run") from None
    except pickle.UnpicklingError as error:
        raise InvalidData(
            f"{what} {path} holds Python objects and was not loaded ({_refused(error)}); save "
            "tensors and plain values alone, best as safetensors"
        ) from None
    except Exception as error:
        raise InvalidData(f"{what} {path} is damaged: {_line(error)}") from None


def _weights_only(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unusual files, which are refused or fine
        return torch.load(path, map_location="cpu", weights_only=True)


def _safe() -> list[Any]:
    names = [
        (make, name)
        for name, make in allowed.ALLOWED.items()
        if not name.startswith(("torch.", "collections.", "numpy.ndarray"))
    ]
    # Torch sets the state of objects whose own type is on its list, so these stand for themselves.
    types = {type(np.dtype(name)) for name in allowed.NUMBERS}
    return [*names, np.ndarray, *types]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _refused(error: Exception) -> str:
    """The name that torch refused, out of its long message."""
    text = str(error)
    _, found, rest = text.partition("GLOBAL ")
    return f"it names {rest.split()[0]}" if found and rest else "it does more than hold data"
