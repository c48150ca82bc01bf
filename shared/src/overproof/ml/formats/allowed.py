"""The names that a file may refer to, and what stands in their place: tensors, arrays, settings."""

from __future__ import annotations

import argparse
import io
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overproof.errors import InvalidData

MAX_BYTES = 2**33

# What numbers numpy may bring, by the names of their types.
NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")


def _load_from_bytes(content: bytes) -> Any:
    """In the place of `torch.storage._load_from_bytes`, which unpickles whatever the bytes say.

    Weights only, on the CPU whatever device is named, within the limit.

    Raises:
        InvalidData: the bytes are no storage.
    """
    if not isinstance(content, bytes) or len(content) > MAX_BYTES:
        raise InvalidData("holds a storage that is no bytes, or too many")
    if content.startswith(b"PK"):  # torch pickles storages unpacked; an archive hides their size
        raise InvalidData("holds a storage in an archive")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # storages with a type are deprecated, not gone
            storage = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged storage raises whatever its instructions lead to
        reason = " ".join(str(error).split())[:120]
        raise InvalidData(f"holds a storage that is more than numbers ({reason})") from None
    if not isinstance(storage, torch.storage.TypedStorage):
        raise InvalidData("holds a storage that is none")
    return storage


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *_of_gradients: Any
) -> Tensor:
    """In the place of `torch._utils._rebuild_tensor_v2`, which lets a view grow its storage."""
    if not isinstance(storage, torch.storage.TypedStorage):
        raise InvalidData("holds a tensor without a storage")
    if not (_is_shape((offset,)) and _is_shape(size) and _is_shape(stride)) or (
        len(size) != len(stride)
    ):
        raise InvalidData("holds a tensor of impossible shape")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held, dtype, untyped = len(storage), storage.dtype, storage.untyped()  # type: ignore[no-untyped-call]
    reach = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
    if (math.prod(size) and reach > held) or math.prod(size) * dtype.itemsize > MAX_BYTES:
        raise InvalidData(f"holds a tensor of shape {size} with only {held} numbers")
    return torch.empty(0, dtype=dtype).set_(untyped, offset, size, stride)


def _rebuild_parameter(data: Tensor, *_of_gradients: Any) -> Tensor:
    if not isinstance(data, Tensor):
        raise InvalidData("holds a parameter that is no tensor")
    return data


def _size(sides: Any) -> tuple[Any, ...]:
    if not isinstance(sides, tuple | list):
        raise InvalidData("holds a shape that is none")
    return tuple(sides)


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """In the place of numpy's `_reconstruct`: an array, whose contents its state will bring."""
    if shape != (0,):
        raise InvalidData("holds an array of impossible shape")
    return np.empty((0,), dtype=np.int8)


def set_array(array: NDArray[Any], state: Any) -> None:
    """Fill an array with the state that numpy pickled: version, shape, type, order, bytes.

    Raises:
        InvalidData: it holds anything but the bytes of numbers.
    """
    _, shape, dtype, _, content = state
    if not isinstance(dtype, np.dtype) or dtype.name not in NUMBERS:
        raise InvalidData("holds an array that is not of numbers")
    if not _is_shape(shape):
        raise InvalidData("holds an array of impossible shape")
    if not isinstance(content, bytes) or math.prod(shape) * dtype.itemsize != len(content):
        raise InvalidData(f"holds an array of shape {shape} with only {len(content)} bytes")
    array.__setstate__(state)


def set_dtype(dtype: np.dtype[Any], state: Any) -> None:
    """Give a type the order of bytes that numpy pickled.

    The rest of the state is not taken: its flags could declare numbers to be objects.

    Raises:
        InvalidData: it is the state of anything but numbers.
    """
    order, fields = state[1], state[2:5]
    if order not in ("<", ">", "|", "=") or fields != (None, None, None):
        raise InvalidData("holds values of a type of several fields")
    dtype.__setstate__((3, order, *fields, -1, -1, 0))  # type: ignore[attr-defined]  # no stub


def _is_shape(value: Any) -> bool:
    """Whether a value is a tuple of plain sizes; nothing is multiplied or printed before that."""
    return isinstance(value, tuple) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _dtype(code: Any, *_: Any) -> np.dtype[Any]:
    """Of numbers only: an array of objects would be a pickle in a pickle."""
    if not isinstance(code, str | bytes):
        raise InvalidData("holds values of a type without a name")
    dtype = np.dtype(str(code), False, True)  # a copy: its state must not change the original
    if dtype.name not in NUMBERS:
        raise InvalidData(f"holds values of the type {str(code)[:20]}")
    return dtype


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    """An array as the newest form of pickles has it."""
    array = np.empty((0,), dtype=np.int8)
    set_array(array, (1, shape, dtype, order == "F", bytes(content)))
    return array


def _scalar(dtype: Any, content: Any = None) -> Any:
    """A number of numpy, as one of Python."""
    if not isinstance(dtype, np.dtype) or dtype.name not in NUMBERS:
        raise InvalidData("holds a number of unknown type")
    if not isinstance(content, bytes) or len(content) != dtype.itemsize:
        raise InvalidData("holds a number of the wrong length")
    return np.frombuffer(content, dtype)[0].item()


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes as Python 2 pickled them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise InvalidData("encodes text in an unknown way")
    return text.encode("latin1")


def _settings(*_: Any) -> argparse.Namespace:
    """In the place of `copyreg._reconstructor`, of which settings are the only use known here."""
    return argparse.Namespace()


def _nothing(*_: Any) -> Any:
    """What files name only to hand it on."""
    raise InvalidData("makes an object")


ALLOWED: Mapping[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch.storage._load_from_bytes": _load_from_bytes,
    "torch.Size": _size,
    "collections.OrderedDict": OrderedDict,
    "argparse.Namespace": argparse.Namespace,
    "copyreg._reconstructor": _settings,
    "copy_reg._reconstructor": _settings,
    "builtins.object": _nothing,
    "__builtin__.object": _nothing,
    "_codecs.encode": _latin1,
    "numpy.dtype": _dtype,
    "numpy.ndarray": _nothing,
    **{
        f"numpy.{core}.multiarray.{name}": make
        for core in ("core", "_core")
        for name, make in (("scalar", _scalar), ("_reconstruct", _empty_array))
    },
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
}
