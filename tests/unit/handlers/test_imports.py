"""Handlers that take up what somebody brought."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overproof.core.ids import UnitId
from overproof.core.spec import (
    AssetSpec,
    ImportedLabelsBody,
    ImportedNetworkBody,
    ImportedSetBody,
    JobSpec,
    PluginRef,
)
from overproof.errors import InvalidData, ShapeError
from overproof.experiments.units import make_unit
from overproof.handlers.imports import (
    ImportedLabelsHandler,
    ImportedNetworkHandler,
    ImportedSetHandler,
)
from overproof.ml.checkpoints import save_weights
from overproof.ml.datasets.base import load
from overproof.ml.distill.base import DistilledSet
from overproof.ml.models.base import build
from tests.builders import DIGITS

VERSION = "a" * 64
BROUGHT = AssetSpec(name="brought", version=VERSION)
NETWORK = PluginRef(name="convnet", params={"width": 4, "depth": 2})


def _set(path: Path, size: int = 8) -> Path:
    DistilledSet(images=torch.rand(10, 1, size, size), labels=torch.arange(10)).write(path)
    return path


def test_imported_set_becomes_the_file_that_training_reads(
    a_context: Callable[..., Any], tmp_path: Path
) -> None:
    unit = make_unit("imported-sets", ImportedSetBody(dataset=DIGITS, imported=BROUGHT))
    context = a_context(assets={VERSION: _set(tmp_path / "set")})

    output = ImportedSetHandler().run(JobSpec.of((unit,)), context)[UnitId(unit.id)]

    assert output.files["images"].read_bytes() == (tmp_path / "set").read_bytes()
    assert (output.result["images"], output.result["training_images"]) == (10, 10)


def test_set_that_does_not_fit_the_data_set_is_refused(
    a_context: Callable[..., Any], tmp_path: Path
) -> None:
    unit = make_unit("imported-sets", ImportedSetBody(dataset=DIGITS, imported=BROUGHT))
    context = a_context(assets={VERSION: _set(tmp_path / "set", size=16)})

    with pytest.raises(ShapeError, match="distilled images must be"):
        ImportedSetHandler().run(JobSpec.of((unit,)), context)


def test_imported_network_is_measured_as_it_is(
    a_context: Callable[..., Any], tmp_path: Path
) -> None:
    digits = load(DIGITS, None)
    network = build(NETWORK, digits.facts, 5)
    save_weights(network, tmp_path / "weights")
    body = ImportedNetworkBody(test_set=DIGITS, network=NETWORK, weights=BROUGHT)
    unit = make_unit("imported-networks", body)
    context = a_context(assets={VERSION: tmp_path / "weights"})

    output = ImportedNetworkHandler().run(JobSpec.of((unit,)), context)[UnitId(unit.id)]

    with torch.no_grad():
        expected = network.eval()(digits.test_images.float() / 255).argmax(dim=1)
    assert load_file(output.files["predictions"])["prediction"].tolist() == expected.tolist()
    assert output.result["clean_correct"] == int((expected == digits.test_labels).sum())
    assert output.result["network"] == NETWORK.model_dump(mode="json")
    assert output.files["weights"].read_bytes() == (tmp_path / "weights").read_bytes()


def test_network_of_another_width_is_refused(a_context: Callable[..., Any], tmp_path: Path) -> None:
    wide = PluginRef(name="convnet", params={"width": 8, "depth": 2})
    save_weights(build(wide, load(DIGITS, None).facts, 0), tmp_path / "weights")
    body = ImportedNetworkBody(test_set=DIGITS, network=NETWORK, weights=BROUGHT)

    with pytest.raises(InvalidData, match="do not fit the network"):
        ImportedNetworkHandler().run(
            JobSpec.of((make_unit("imported-networks", body),)),
            a_context(assets={VERSION: tmp_path / "weights"}),
        )


def test_labels_that_were_brought_are_handed_on(
    a_context: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "labels").write_bytes(b"labels of views")
    body = ImportedLabelsBody(training_set=f"dst-{'0' * 32}", labels=BROUGHT)
    unit = make_unit("imported-labels", body)

    output = ImportedLabelsHandler().run(
        JobSpec.of((unit,)), a_context(assets={VERSION: tmp_path / "labels"})
    )[UnitId(unit.id)]

    assert output.files["labels"].read_bytes() == b"labels of views"
