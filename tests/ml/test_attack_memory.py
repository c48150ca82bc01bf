"""Batches that follow from the memory of the device."""

from __future__ import annotations

import pytest
import torch

from overproof.core.spec import PluginRef
from overproof.ml.attack.memory import rows_that_fit, values_between
from overproof.ml.models.base import build
from overproof.ml.shapes import ImageFacts

CPU = torch.device("cpu")


def test_values_between_layers_are_counted_once(colour_facts: ImageFacts) -> None:
    model = build(PluginRef(name="convnet", params={"width": 4, "depth": 2}), colour_facts, 0)

    # Convolution, norm and rectifier at 8 × 8 and at 4 × 4, poolings at 4 × 4 and 2 × 2; 2 classes.
    expected = 4 * (3 * 64 + 16 + 3 * 16 + 4) + 2
    assert values_between(model.network, colour_facts) == expected
    assert model.network.training


def test_half_of_the_memory_is_used_and_one_image_always_fits(
    colour_facts: ImageFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(PluginRef(name="convnet", params={"width": 4, "depth": 2}), colour_facts, 0)
    image = 3 * 4 * values_between(model.network, colour_facts)

    def with_memory(size: int) -> int:
        pages = {"SC_PHYS_PAGES": size, "SC_PAGE_SIZE": 1}
        monkeypatch.setattr("os.sysconf", lambda name: pages[name])
        return rows_that_fit(model.network, colour_facts, CPU)

    assert with_memory(20 * image) == 10
    assert with_memory(image) == 1
