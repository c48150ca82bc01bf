"""Checkpoints as training code leaves them: every tensor lands, or all that does not is listed."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from overproof.core.spec import PluginRef
from overproof.errors import InvalidData
from overproof.ml.formats import allowed
from overproof.ml.formats.content import Target
from overproof.ml.formats.networks import import_network
from overproof.ml.formats.weights import put_into, read
from overproof.ml.models.base import Normalized, build
from overproof.ml.models.stored import load_network
from overproof.ml.shapes import ImageFacts

FACTS = ImageFacts(channels=3, size=(32, 32), classes=10, mean=(0.4,) * 3, std=(0.2,) * 3)
TARGET = Target(dataset="cifar-10", facts=FACTS)


def a_network(name: str = "convnet", seed: int = 3, **params: Any) -> Normalized:
    if name == "convnet":
        params = {"width": 4} | params
    return build(PluginRef(name=name, params=params), FACTS, seed)


def state_of(model: Normalized) -> dict[str, Tensor]:
    return dict(model.network.state_dict())


def assert_lands(path: Path, expected: Normalized, which: str | None = None, **net: Any) -> None:
    """All weights in the file reach another network of the same form."""
    model = a_network(**net, seed=99)
    put_into(model, read(path, which), path)
    for name, tensor in expected.network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], tensor), name


# ---- where weights lie -------------------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "wrapping",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {0: {"step": torch.ones(1)}}}},
        lambda state: {"net": state, "acc": np.float64(91.2), "epoch": np.int64(3)},
        lambda state: {"checkpoint": {"model_state_dict": OrderedDict(state)}, "lr": 0.1},
        lambda state: {"params": state, "args": argparse.Namespace(lr=0.1, name="x")},
        lambda state: {name: value.numpy() for name, value in state.items()},
    ],
    ids=["plain", "state_dict", "model", "net-numpy", "nested", "namespace", "arrays"],
)
def test_weights_are_found_wherever_they_lie(
    tmp_path: Path, wrapping: Callable[[Mapping[str, Tensor]], Any], legacy: bool
) -> None:
    made = a_network()
    path = tmp_path / "net.pt"
    torch.save(wrapping(state_of(made)), path, _use_new_zipfile_serialization=not legacy)

    assert_lands(path, made)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "model.", "net.", "module._orig_mod.", "_orig_mod.module.model."],
)
def test_prefixes_are_dropped_in_any_order(tmp_path: Path, prefix: str) -> None:
    made = a_network()
    torch.save({f"{prefix}{name}": value for name, value in state_of(made).items()}, tmp_path / "x")

    assert f"the prefix {prefix} was dropped" in read(tmp_path / "x").notes
    assert_lands(tmp_path / "x", made)


def test_ema_beside_raw_weights_is_refused_until_one_is_chosen(tmp_path: Path) -> None:
    raw, ema = a_network(seed=1), a_network(seed=2)
    average = {f"module.{name}": value for name, value in state_of(ema).items()}
    torch.save(
        {"model": state_of(raw), "model_ema": average | {"n_averaged": torch.tensor(7)}},
        tmp_path / "both.pt",
    )

    with pytest.raises(
        InvalidData, match=r"hold 2 sets \(model, model_ema\); choose one by --which"
    ):
        read(tmp_path / "both.pt")
    with pytest.raises(InvalidData, match="no one set called 'ema'; there are: model, model_ema"):
        read(tmp_path / "both.pt", "ema")
    assert_lands(tmp_path / "both.pt", raw, "model")
    assert_lands(tmp_path / "both.pt", ema, "model_ema")


def test_weights_in_halves_or_from_another_device_land_as_float32_on_the_cpu(
    tmp_path: Path,
) -> None:
    made = a_network()
    state = {name: value.half() for name, value in state_of(made).items()}
    with mock.patch.object(torch.serialization, "location_tag", return_value="cuda:3"):
        torch.save(state, tmp_path / "net.pt")
    model = a_network(seed=99)

    notes = put_into(model, read(tmp_path / "net.pt"), tmp_path / "net.pt")

    assert notes == ("torch.float16 became float32",)
    for name, tensor in model.network.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[name].float())


def test_safetensors_are_read(tmp_path: Path) -> None:
    made = a_network()
    save_file({f"module.{name}": value for name, value in state_of(made).items()}, tmp_path / "x")

    assert_lands(tmp_path / "x", made)


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
@pytest.mark.parametrize("pooling", ["avg", "none"])
def test_names_of_the_known_convnets_mean_the_same_layers(
    tmp_path: Path, norm: str, pooling: str
) -> None:
    """DC numbers all layers in one sequence, IDC counts blocks of each kind."""
    made = a_network(norm=norm, pooling=pooling, depth=3)
    convolutions = [each for each in made.network.modules() if isinstance(each, nn.Conv2d)]
    norms = [
        each for each in made.network.modules() if isinstance(each, nn.GroupNorm | nn.BatchNorm2d)
    ]
    theirs: dict[str, Tensor] = {}
    for kind, layers in (("conv", convolutions), ("norm", norms)):
        for block, layer in enumerate(layers):
            for name, value in layer.state_dict().items():
                theirs[f"layers.{kind}.{block}.{name}"] = value
    assert isinstance(made.network.classifier, nn.Linear)
    theirs |= {f"classifier.{n}": v for n, v in made.network.classifier.state_dict().items()}
    torch.save(theirs, tmp_path / "idc.pt")
    torch.save(state_of(made), tmp_path / "dc.pt")

    form: dict[str, Any] = {"norm": norm, "pooling": pooling, "depth": 3}
    assert_lands(tmp_path / "idc.pt", made, **form)
    assert_lands(tmp_path / "dc.pt", made, **form)


@pytest.mark.parametrize(
    ("name", "last", "shortcut"),
    [
        ("resnet-18", "fc", "downsample"),
        ("resnet-18", "linear", "shortcut"),
        ("resnet-18", "classifier", "shortcut"),
        ("vgg-11", "classifier", ""),
        ("mobilenet-v2", "classifier.1", ""),
    ],
)
def test_names_of_torchvision_and_its_copies_mean_the_same_layers(
    tmp_path: Path, name: str, last: str, shortcut: str
) -> None:
    made = a_network(name)
    theirs = {
        key.removeprefix("body.")
        .replace("head.", f"{last}.")
        .replace("downsample", shortcut or "downsample"): value
        for key, value in state_of(made).items()
    }
    torch.save(theirs, tmp_path / "net.pt")

    assert_lands(tmp_path / "net.pt", made, name=name)


def test_counters_that_older_code_does_not_store_begin_at_zero(tmp_path: Path) -> None:
    made = a_network(norm="batch")
    state = {n: v for n, v in state_of(made).items() if "num_batches_tracked" not in n}
    torch.save(state, tmp_path / "net.pt")

    assert_lands(tmp_path / "net.pt", made, norm="batch")


def test_two_names_of_one_weight_are_refused(tmp_path: Path) -> None:
    state = state_of(a_network())
    torch.save(state | {"linear.weight": state["classifier.weight"]}, tmp_path / "net.pt")

    with pytest.raises(InvalidData, match=r"hold classifier\.weight under two names"):
        put_into(a_network(), read(tmp_path / "net.pt"), tmp_path / "net.pt")


def test_all_that_does_not_land_is_listed_and_nothing_changes(tmp_path: Path) -> None:
    state = state_of(a_network())
    del state["features.0.bias"]
    state["features.1.weight"] = torch.zeros(5)
    torch.save(state | {"gamma": torch.ones(1)}, tmp_path / "net.pt")
    model = a_network(seed=99)
    before = {name: value.clone() for name, value in state_of(model).items()}

    with pytest.raises(InvalidData) as refusal:
        put_into(model, read(tmp_path / "net.pt"), tmp_path / "net.pt")

    assert str(refusal.value).endswith(
        "do not fit the network: 1 missing (features.0.bias); 1 unexpected (gamma); 1 of another "
        "shape (features.1.weight (5,) instead of (4,))"
    )
    assert all(torch.equal(value, before[name]) for name, value in state_of(model).items())


# ---- a network of ours -------------------------------------------------------------------------


CONVNET = PluginRef(name="convnet", params={"width": 4})


def test_imported_network_gives_the_logits_of_the_original(tmp_path: Path) -> None:
    made = a_network()
    torch.save({"state_dict": state_of(made)}, tmp_path / "net.pt")
    x = torch.rand(4, 3, 32, 32)

    facts = import_network(
        tmp_path / "net.pt", tmp_path / "ours", TARGET, CONVNET, normalisation="dc"
    )
    ours = load_network(CONVNET, FACTS, tmp_path / "ours").eval()

    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    assert torch.allclose(ours(x), made.network((x - mean) / std), atol=1e-5)
    assert facts["dataset"] == "cifar-10"
    assert facts["parameters"] == sum(each.numel() for each in made.network.parameters())
    assert facts["std"] == [0.2023, 0.1994, 0.2010]


def test_normalisation_is_demanded_unless_it_lies_among_the_weights(tmp_path: Path) -> None:
    state = {f"model.{name}": value for name, value in state_of(a_network()).items()}
    torch.save(state, tmp_path / "bare.pt")
    torch.save(
        state | {"mu": torch.full((1, 3, 1, 1), 0.3), "sigma": torch.full((1, 3, 1, 1), 0.1)},
        tmp_path / "with.pt",
    )
    arguments = (tmp_path / "ours", TARGET, CONVNET)

    with pytest.raises(InvalidData, match="sees normalised images, and nobody knows by what mean"):
        import_network(tmp_path / "bare.pt", *arguments)
    facts = import_network(tmp_path / "with.pt", *arguments)

    assert facts["mean"] == pytest.approx([0.3] * 3)
    assert "mean and deviation are those among the weights" in facts["notes"]
    said = import_network(tmp_path / "with.pt", *arguments, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert said["std"] == [1.0] * 3


# ---- files -------------------------------------------------------------------------------------


class _Exploit:
    """Unpickled, it runs a command that makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_code_does_not_run(tmp_path: Path, legacy: bool) -> None:
    marker = tmp_path / "owned"
    value = {"weight": torch.zeros(2), "extra": _Exploit(marker)}
    torch.save(value, tmp_path / "evil.pt", _use_new_zipfile_serialization=not legacy)

    with pytest.raises(InvalidData, match=r"holds Python objects .*it names posix\.system"):
        read(tmp_path / "evil.pt")

    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"weights", b"PK\x03\x04 cut short", b"\x10\0\0\0\0\0\0\0{not json at all}", b"\x80\x02"],
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.bin").write_bytes(content)

    with pytest.raises(InvalidData, match=r"weights .*net\.bin") as refusal:
        read(tmp_path / "net.bin")

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_the_name_of_their_tensor(
    tmp_path: Path, value: float
) -> None:
    save_file({"good": torch.zeros(2), "bad": torch.tensor([0.0, value])}, tmp_path / "net")

    with pytest.raises(InvalidData, match="bad holds NaN or infinity"):
        read(tmp_path / "net")


@pytest.mark.parametrize("value", [[torch.zeros(2)], {"weight": torch.zeros(2), "epoch": 3}, {}])
def test_what_is_no_state_dict_is_refused(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "x.pt")

    with pytest.raises(InvalidData, match="hold no named tensors; save the state_dict"):
        read(tmp_path / "x.pt")


def test_files_beyond_the_limit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed, "MAX_BYTES", 20_000)
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
        read(tmp_path / "large")
    with pytest.raises(InvalidData, match="claim 40000 bytes"):
        read(tmp_path / "claim.pt")
    with pytest.raises(InvalidData, match="unpacks to"):
        read(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta")], ids=["sparse", "meta"]
)
def test_weights_that_are_not_dense_are_refused(tmp_path: Path, tensor: Tensor) -> None:
    torch.save({"weight": tensor}, tmp_path / "odd.pt")

    with pytest.raises(InvalidData, match="weight is sparse, quantised or empty"):
        read(tmp_path / "odd.pt")


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.binary(max_size=6), st.booleans())
def test_no_damage_raises_anything_but_our_errors(where: float, put: bytes, legacy: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pt"
        torch.save(
            {"state_dict": {"weight": torch.ones(2, 2)}, "args": argparse.Namespace(lr=0.1)},
            path,
            _use_new_zipfile_serialization=not legacy,
        )
        content = path.read_bytes()
        at = int(where * len(content))
        path.write_bytes(content[:at] + put + (content[at + len(put) :] if put else b""))
        with contextlib.suppress(InvalidData):
            assert read(path).tensors.keys() <= {"weight"} or put
