"""Weights in files: safetensors of our own, and whatever form users bring. Nothing in it runs."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from overproof.errors import InvalidData

MAX_BYTES = 2**33
_WRAPPERS = ("state_dict", "model", "net")
_PARALLEL_PREFIX = "module."
_SHOWN = 5


def save_weights(model: nn.Module, path: Path) -> None:
    """Write parameters and buffers of `model` as safetensors; equal weights give equal bytes."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in _state(model).items()}
    save_file(state, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights in the file `path` into `model`, all of them or none.

    Raises:
        InvalidData: as `read_weights`; or names or shapes differ from the model's.
    """
    weights = read_weights(path)
    _check_fit(_state(model), weights, path)
    model.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors in a safetensors file, or in one of `torch.save` that holds only tensors.

    Of torch files the common wrapping is undone: a dict below `state_dict`, `model` or `net`, and
    the prefix `module.` that parallel training leaves. Python objects are refused by torch's
    restricted unpickler, so no code of the file runs.

    Returns:
        Tensors on the CPU.

    Raises:
        InvalidData: the file is absent, too large, of another form, holds Python objects or
            numbers that are not finite.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise InvalidData(f"weights {path} cannot be read: {error.strerror}") from None
    if size > MAX_BYTES:
        raise InvalidData(f"weights {path} have {size} bytes; at most {MAX_BYTES} are read")
    # A safetensors file is the length of its header, then JSON.
    weights = _from_safetensors(path) if head[8:] == b"{" else _from_torch(path)
    _check_values(weights, path)
    return weights


def _state(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = model.state_dict()
    return state


def _from_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidData(f"weights {path} are no safetensors file: {error}") from None
    return weights


def _from_torch(path: Path) -> dict[str, Tensor]:
    _check_unpacked_size(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual files, which are refused or fine
            value: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InvalidData(
            f"weights {path} hold Python objects and were not loaded; "
            "save the state_dict alone, best as safetensors"
        ) from None
    except Exception as error:  # a damaged pickle raises whatever its opcodes lead to
        reason = " ".join(str(error).split())[:200]
        raise InvalidData(f"weights {path} are neither safetensors nor torch: {reason}") from None
    for wrapper in _WRAPPERS:
        if isinstance(value, Mapping) and isinstance(value.get(wrapper), Mapping):
            value = value[wrapper]
    if not isinstance(value, Mapping) or not value:
        raise InvalidData(f"weights {path} hold no named tensors; save the state_dict")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InvalidData(f"weights {path}: {name!r} is no tensor; save the state_dict alone")
    return {name.removeprefix(_PARALLEL_PREFIX): tensor.detach() for name, tensor in value.items()}


def _check_unpacked_size(path: Path) -> None:
    """Refuse an archive that would fill the memory when torch unpacks it."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidData(f"weights {path} are no readable archive: {error}") from None
    if unpacked > MAX_BYTES:
        raise InvalidData(
            f"weights {path} unpack to {unpacked} bytes; at most {MAX_BYTES} are read"
        )


def _check_values(weights: Mapping[str, Tensor], path: Path) -> None:
    # A view can claim more elements than its storage holds; count before anything reads them.
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    if claimed > MAX_BYTES:
        raise InvalidData(f"weights {path} claim {claimed} bytes; at most {MAX_BYTES} are read")
    for name, tensor in weights.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InvalidData(
                f"weights {path}: {name} is sparse, quantised or empty; save it dense"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidData(f"weights {path}: {name} holds NaN or infinity; train it again")


def _check_fit(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    wrong = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for what, names in (
            ("missing", sorted(expected.keys() - weights.keys())),
            ("unexpected", sorted(weights.keys() - expected.keys())),
            ("of another shape", wrong),
        )
        if names
    ]
    if problems:
        raise InvalidData(f"weights {path} do not fit the network: {'; '.join(problems)}")
