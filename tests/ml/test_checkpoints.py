"""Weights of our own: what is saved comes back, what does not fit is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overproof.errors import InvalidData
from overproof.ml.checkpoints import load_weights, save_weights
from overproof.ml.models.base import Normalized


def _layer() -> nn.Linear:
    return nn.Linear(2, 2)


def test_saved_weights_come_back_and_equal_weights_give_equal_bytes(
    tmp_path: Path, tiny_convnet: Normalized
) -> None:
    saved = {name: tensor.clone() for name, tensor in tiny_convnet.state_dict().items()}
    save_weights(tiny_convnet, tmp_path / "a.safetensors")
    save_weights(tiny_convnet, tmp_path / "b.safetensors")

    with torch.no_grad():
        for parameter in tiny_convnet.parameters():
            parameter.zero_()
    load_weights(tiny_convnet, tmp_path / "a.safetensors")

    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    restored = tiny_convnet.state_dict()
    assert all(torch.equal(restored[name], saved[name]) for name in saved)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("weights")

    for name in ("absent.safetensors", "text"):
        with pytest.raises(InvalidData, match="are no safetensors file"):
            load_weights(_layer(), tmp_path / name)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.full((2, 2), torch.nan), "bias": torch.zeros(2)}, tmp_path / "net")

    with pytest.raises(InvalidData, match="weight holds NaN or infinity"):
        load_weights(_layer(), tmp_path / "net")


def test_misfit_lists_all_names_and_shapes_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    layer = _layer()
    before = layer.weight.detach().clone()
    save_file({"weight": torch.zeros(3, 2), "gamma": torch.zeros(1)}, tmp_path / "net")

    with pytest.raises(InvalidData) as refusal:
        load_weights(layer, tmp_path / "net")

    assert str(refusal.value) == (
        f"weights {tmp_path / 'net'} do not fit the network: 1 missing (bias); "
        "1 unexpected (gamma); 1 of another shape (weight (3, 2) instead of (2, 2))"
    )
    assert torch.equal(layer.weight, before)


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    save_file({f"layer{i}": torch.zeros(1) for i in range(9)}, tmp_path / "net")

    with pytest.raises(InvalidData, match=r"9 unexpected \(layer0, .*layer4, …\)"):
        load_weights(_layer(), tmp_path / "net")
