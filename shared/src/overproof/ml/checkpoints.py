"""Weights in files of our own: safetensors with a network's parameters, buffers and statistics."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from overproof.errors import InvalidData
from overproof.ml.formats.weights import check_fit, check_values


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
    check_fit(_state(model), weights, path)
    model.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors in a safetensors file, on the CPU. Files of others: `formats.weights`.

    Raises:
        InvalidData: the file is absent, no safetensors file, or holds numbers that are not finite.
    """
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidData(f"weights {path} are no safetensors file: {error}") from None
    check_values(weights, path)
    return weights


def _state(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = model.state_dict()
    return state
