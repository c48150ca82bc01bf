"""Weights as training code leaves them: found in the file, freed of prefixes, fitted by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.formats import allowed, torch_files
from overproof.ml.models.base import Normalized

_DEPTH = 3  # of dicts in dicts, in which weights are looked for
# Left by parallel training, by compilation and by classes that wrap the network.
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
_STATISTICS = {"mean": "mean", "mu": "mean", "std": "std", "sigma": "std"}
_COUNTERS = ("num_batches_tracked", "n_averaged")
_SHOWN = 5
_MAX_DICTS = 1000  # that are looked into; a dict can hold itself a million times


@dataclass(frozen=True)
class FoundWeights:
    """The weights in a file.

    Attributes:
        tensors: by name without prefixes, on the CPU.
        mean, std: of each channel, which some networks keep among their weights; else None.
        notes: what was undone, one line each.
    """

    tensors: Mapping[str, Tensor]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...]


def read(path: Path, which: str | None = None) -> FoundWeights:
    """The weights in a safetensors file, or in one of `torch.save`. Nothing in it runs.

    Args:
        path: the file.
        which: place in the file, where there are several sets: `ema`, `model`, `checkpoint.ema`.

    Raises:
        InvalidData: the file is absent, too large, of another form, holds code, several sets of
            which none was chosen, or numbers that are not finite.
    """
    # A safetensors file is the length of its header, then JSON.
    place, stored = "", dict[str, Any]()
    if torch_files.read_head(path, what="weights")[8:9] == b"{":
        stored = _from_safetensors(path)
    else:
        place, stored = _chosen(torch_files.load(path, what="weights"), which, path)
    tensors = {name: value for name, value in stored.items() if isinstance(value, Tensor)}
    check_values(tensors, path)
    tensors, statistics = _without_statistics(tensors)
    tensors, prefix = _without_prefixes(tensors)
    notes = [f"taken from {place}"] if place else []
    if prefix:
        notes.append(f"the prefix {prefix} was dropped")
    return FoundWeights(tensors, statistics.get("mean"), statistics.get("std"), tuple(notes))


def put_into(model: Normalized, found: FoundWeights, path: Path) -> tuple[str, ...]:
    """Put weights into a network, all of them or none; names of known code are translated.

    Args:
        model: changed in place. Its mean and deviation stay.
        found: what `read` found.
        path: for messages.

    Returns:
        What was done to the weights, one line each.

    Raises:
        InvalidData: weights are missing, left over or of another shape; all of them are listed.
    """
    expected: dict[str, Tensor] = model.network.state_dict()
    named, notes = _translated(found.tensors, expected, path)
    for name, tensor in expected.items():
        # Counts how often statistics were updated; older code does not store it, nothing reads it.
        if name not in named and name.endswith(_COUNTERS[0]):
            named[name] = torch.zeros_like(tensor)
    check_fit(expected, named, path)
    halves = {str(value.dtype) for value in named.values() if value.dtype in _SHORT}
    if halves:
        notes.append(f"{', '.join(sorted(halves))} became float32")
    model.network.load_state_dict(
        {name: value.to(expected[name].dtype) for name, value in named.items()}
    )
    return (*found.notes, *notes)


_SHORT = (torch.float16, torch.bfloat16)


def check_fit(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not exactly those of the network.

    Raises:
        InvalidData: some are missing, left over or of another shape.
    """
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


# ---- finding -----------------------------------------------------------------------------------


def _from_safetensors(path: Path) -> dict[str, Any]:
    try:
        tensors: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidData(f"weights {path} are no safetensors file: {error}") from None
    return tensors


def _chosen(value: Any, which: str | None, path: Path) -> tuple[str, dict[str, Any]]:
    """The place of a set of weights in the value of a file, and the set."""
    states = dict(_states(value, left=[_MAX_DICTS]))
    if which is not None:
        chosen = [place for place in states if place == which or place.split(".")[0] == which]
    else:
        chosen = list(states)
    if len(chosen) == 1:
        return chosen[0], _tensors(states[chosen[0]])
    known = ", ".join(place or "the file itself" for place in states)
    if not states:
        raise InvalidData(f"weights {path} hold no named tensors; save the state_dict")
    if which is not None:
        raise InvalidData(f"weights {path} have no one set called {which!r}; there are: {known}")
    raise InvalidData(
        f"weights {path} hold {len(states)} sets ({known}); choose one by --which, for the EMA is "
        "another network than the raw weights"
    )


def _states(
    value: Any, place: tuple[str, ...] = (), *, left: list[int]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every set of weights in a value: a dict from names to nothing but tensors and numbers.

    Args:
        value: of a file.
        place: names that led to it.
        left: one number, of dicts that may still be looked into; counted down.

    Raises:
        InvalidData: there are more.
    """
    if not isinstance(value, Mapping) or len(place) > _DEPTH:
        return
    left[0] -= 1
    if left[0] < 0:
        raise InvalidData(f"weights lie among more than {_MAX_DICTS} dicts; save the state_dict")
    if _is_state(value):
        yield ".".join(place), value
        return
    for key, each in value.items():
        # An optimiser's state is about the weights, and is none.
        if isinstance(key, str) and not key.lower().startswith(("optim", "sched", "scaler")):
            yield from _states(each, (*place, key), left=left)


def _is_state(value: Mapping[Any, Any]) -> bool:
    tensors = [each for each in value.values() if isinstance(each, Tensor | np.ndarray)]
    rest = [name for name, each in value.items() if not isinstance(each, Tensor | np.ndarray)]
    named = all(isinstance(name, str) for name in value)
    return named and bool(tensors) and all(str(name).endswith(_COUNTERS) for name in rest)


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    converted = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }
    return {
        name: value.detach() if isinstance(value, Tensor) else torch.tensor(value)
        for name, value in converted.items()
    }


def check_values(weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not dense and finite.

    Raises:
        InvalidData: one is not, or all together claim more than is read.
    """
    # A view can claim more elements than its storage holds; count before anything reads them.
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    if claimed > allowed.MAX_BYTES:
        raise InvalidData(
            f"weights {path} claim {claimed} bytes; at most {allowed.MAX_BYTES} are read"
        )
    for name, tensor in weights.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InvalidData(
                f"weights {path}: {name} is sparse, quantised or empty; save it dense"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidData(f"weights {path}: {name} holds NaN or infinity; train it again")


# ---- names -------------------------------------------------------------------------------------


def _without_statistics(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, tuple[float, ...]]]:
    """The rest, and the mean and deviation of pixels, where both are among the weights."""
    found = {
        name: kind
        for name, tensor in tensors.items()
        if (kind := _STATISTICS.get(name.rpartition(".")[2])) and tensor.numel() in (1, 3)
    }
    if sorted(found.values()) != ["mean", "std"]:
        return dict(tensors), {}
    rest = {name: tensor for name, tensor in tensors.items() if name not in found}
    values = {kind: tuple(tensors[name].flatten().tolist()) for name, kind in found.items()}
    return rest, values


def _without_prefixes(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Names without what all of them begin with, and that prefix."""
    named = {name: value for name, value in tensors.items() if name != _COUNTERS[1]}
    dropped = ""
    while named:
        common = next(
            (prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in named)), None
        )
        if common is None:
            break
        named = {name.removeprefix(common): value for name, value in named.items()}
        dropped += common
    return named, dropped


_LAST_LAYER = re.compile(r"(?:fc|linear|classifier(?:\.\d+)?|head(?:\.fc)?)\.(weight|bias)")
_LISTED_LAYER = re.compile(r"layers\.(conv|norm)\.(\d+)\.(\w+)")


def _translated(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Weights by the names that we give them, and a note of how many had others."""
    stride = _block_length(expected)
    named: dict[str, Tensor] = {}
    renamed = 0
    for name, tensor in tensors.items():
        ours = next((each for each in _translations(name, stride) if each in expected), name)
        if ours in named:
            raise InvalidData(f"weights {path} hold {ours} under two names, one of them {name}")
        named[ours] = tensor
        renamed += ours != name
    return named, [f"{renamed} names were translated"] if renamed else []


def _translations(name: str, stride: int) -> Iterator[str]:
    """Names that a weight of known code may have with us.

    DC, DSA, DM and MTT name layers of ConvNet as we do (`features.4.weight`); IDC, DREAM and RDED
    by kind and block (`layers.conv.1.weight`). torchvision and the many copies of its ResNet for
    small images differ in the last layer and in the shortcuts.
    """
    listed = _LISTED_LAYER.fullmatch(name)
    if listed:
        kind, block, what = listed.groups()
        yield f"features.{stride * int(block) + (kind == 'norm')}.{what}"
    last = _LAST_LAYER.fullmatch(name)
    for form in (name, name.replace(".shortcut.", ".downsample.")):
        yield form
        yield f"body.{form}"
    if last:
        yield f"classifier.{last[1]}"
        yield f"head.{last[1]}"


def _block_length(expected: Mapping[str, Tensor]) -> int:
    """Layers between two convolutions of ConvNet; 0 where there are not two."""
    kernels = [
        int(match[1])
        for name, tensor in expected.items()
        if tensor.ndim == 4 and (match := re.fullmatch(r"features\.(\d+)\.weight", name))
    ]
    return kernels[1] - kernels[0] if len(kernels) > 1 else 0
