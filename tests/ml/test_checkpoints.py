from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overproof.errors import InvalidData
from overproof.ml import checkpoints
from overproof.ml.checkpoints import load_weights, read_weights, save_weights
from overproof.ml.models.base import Normalized


class _Exploit:
    """Unpickled, it runs a command that makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


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


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_torch_files_are_read_under_their_usual_wrappings(
    tmp_path: Path, wrapper: str | None, legacy: bool
) -> None:
    state = OrderedDict((f"module.{name}", value) for name, value in _layer().state_dict().items())
    value = {wrapper: state, "epoch": 3} if wrapper else state
    torch.save(value, tmp_path / "net.pt", _use_new_zipfile_serialization=not legacy)

    weights = read_weights(tmp_path / "net.pt")

    assert list(weights) == ["weight", "bias"]
    assert torch.equal(weights["weight"], state["module.weight"])


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_code_in_a_torch_file_does_not_run(tmp_path: Path, legacy: bool) -> None:
    marker = tmp_path / "owned"
    value = {"weight": torch.zeros(2), "extra": _Exploit(marker)}
    torch.save(value, tmp_path / "evil.pt", _use_new_zipfile_serialization=not legacy)

    with pytest.raises(InvalidData, match="hold Python objects and were not loaded"):
        read_weights(tmp_path / "evil.pt")

    assert not marker.exists()


def test_code_in_a_plain_pickle_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(_Exploit(marker)))

    with pytest.raises(InvalidData, match=r"evil\.pkl"):
        read_weights(tmp_path / "evil.pkl")

    assert not marker.exists()


def test_the_exploit_would_work_on_a_careless_reader(tmp_path: Path) -> None:
    marker = tmp_path / "owned"

    pickle.loads(pickle.dumps(_Exploit(marker)))

    assert marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"weights", b"PK\x03\x04 cut short", b"\x10\0\0\0\0\0\0\0{not json at all}", b"\x80\x02"],
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.bin").write_bytes(content)

    with pytest.raises(InvalidData, match=r"weights .*net\.bin") as refusal:
        read_weights(tmp_path / "net.bin")

    assert "\n" not in str(refusal.value)


def test_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="cannot be read: No such file"):
        read_weights(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_the_name_of_their_tensor(
    tmp_path: Path, value: float
) -> None:
    save_file({"good": torch.zeros(2), "bad": torch.tensor([0.0, value])}, tmp_path / "net")

    with pytest.raises(InvalidData, match="bad holds NaN or infinity"):
        read_weights(tmp_path / "net")


def test_what_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    torch.save({"weight": torch.zeros(2), "epoch": 3}, tmp_path / "mixed.pt")

    with pytest.raises(InvalidData, match="hold no named tensors"):
        read_weights(tmp_path / "list.pt")
    with pytest.raises(InvalidData, match="'epoch' is no tensor"):
        read_weights(tmp_path / "mixed.pt")


def test_files_beyond_the_limit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_BYTES", 20_000)
    save_file({"weight": torch.zeros(10_000)}, tmp_path / "large")
    torch.save({"weight": torch.zeros(1).expand(10_000)}, tmp_path / "claim.pt")
    torch.save({"weight": torch.zeros(10_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    assert (tmp_path / "bomb.pt").stat().st_size < 20_000

    with pytest.raises(InvalidData, match="at most 20000 are read"):
        read_weights(tmp_path / "large")
    with pytest.raises(InvalidData, match="claim 40000 bytes"):
        read_weights(tmp_path / "claim.pt")
    with pytest.raises(InvalidData, match="unpack to"):
        read_weights(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta")], ids=["sparse", "meta"]
)
def test_weights_that_are_not_dense_are_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"weight": tensor}, tmp_path / "odd.pt")

    with pytest.raises(InvalidData, match="weight is sparse, quantised or empty"):
        read_weights(tmp_path / "odd.pt")


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
