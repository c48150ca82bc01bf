"""Networks that know nothing of us."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overproof.core.registry import Params
from overproof.errors import InvalidSpec
from overproof.ml.models.base import BodyAndHead
from overproof.ml.models.foreign import Opaque, make
from overproof.ml.shapes import ImageFacts


class _Width(Params):
    width: int = 5


def _linear(width: int, outputs: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * side * side, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def test_plain_module_is_made_of_parameters_and_facts(colour_facts: ImageFacts) -> None:
    made = make(_linear, _Width(width=7), colour_facts, {"outputs": "classes", "side": "height"})

    assert isinstance(made, Opaque)
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(made(x), made.module(x))
    assert made.embed(x).shape == (4, 2)
    assert {each.out_features for each in made.modules() if isinstance(each, nn.Linear)} == {7, 2}


def test_network_of_ours_stays_what_it_is(colour_facts: ImageFacts) -> None:
    made = make(lambda: BodyAndHead(nn.Flatten(), nn.Linear(192, 2)), Params(), colour_facts, {})

    assert isinstance(made, BodyAndHead)


@pytest.mark.parametrize(
    ("factory", "message"),
    [(lambda: 3, "makes a int, no torch module"), (lambda other: other, "arguments: .*'other'")],
)
def test_what_makes_no_network_is_refused(
    colour_facts: ImageFacts, factory: Any, message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        make(factory, Params(), colour_facts, {})
