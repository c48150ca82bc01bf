"""Checks that every network of the catalog must pass; a new one is a row here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from overproof.catalog.models import MODELS
from overproof.core.spec import PluginRef, Scalar
from overproof.ml.models.base import Normalized, build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts

COLOUR = ImageFacts(
    channels=3, size=(32, 32), classes=7, mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26)
)
CLOTHES = ImageFacts(channels=1, size=(28, 28), classes=10, mean=(0.29,), std=(0.35,))
DIGITS = ImageFacts(channels=1, size=(8, 8), classes=10, mean=(0.31,), std=(0.38,))


@dataclass(frozen=True)
class Case:
    model: str
    facts: ImageFacts
    params: Mapping[str, Scalar] = field(default_factory=dict)

    def __str__(self) -> str:
        given = "-".join(str(value) for value in self.params.values())
        return f"{self.model}-{given or 'default'}-{self.facts.size[0]}"

    def build(self, seed: int, *labels: str | int) -> Normalized:
        return build(PluginRef(name=self.model, params=self.params), self.facts, seed, *labels)

    def images(self, count: int) -> torch.Tensor:
        return torch.rand(
            (count, self.facts.channels, *self.facts.size), generator=generator(0, "images")
        )


CASES = [
    Case("convnet", COLOUR, {"width": 16}),
    Case("convnet", CLOTHES, {"width": 16}),
    Case("convnet", DIGITS, {"width": 16}),
    Case("convnet", COLOUR, {"width": 16, "norm": "batch"}),
    Case("resnet-18", COLOUR),
    Case("resnet-18", CLOTHES, {"norm": "instance"}),
    Case("resnet-18", DIGITS),
    Case("vgg-11", COLOUR),
    Case("vgg-11", CLOTHES, {"norm": "instance"}),
    Case("vgg-11", DIGITS),
    Case("mobilenet-v2", COLOUR, {"width_multiplier": 0.25}),
    Case("mobilenet-v2", CLOTHES, {"width_multiplier": 0.25}),
    Case("mobilenet-v2", DIGITS, {"width_multiplier": 0.25}),
    Case("timm", COLOUR, {"architecture": "test_resnet"}),
    Case("timm", DIGITS, {"architecture": "test_resnet"}),
    Case("timm", COLOUR, {"architecture": "test_vit"}),
]


def test_every_model_of_the_catalog_has_a_case() -> None:
    assert {case.model for case in CASES} == set(MODELS.names())


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_logits_are_finite_and_one_for_each_class(case: Case) -> None:
    network = case.build(0)
    x = case.images(4)

    logits = network(x)

    assert network.training
    assert logits.shape == (4, case.facts.classes)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    assert logits.std(dim=0).min() > 0, "the images make no difference"


def test_in_eval_mode_an_image_has_its_logits_in_any_batch(case: Case) -> None:
    network = case.build(0)
    x = case.images(4)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # one pass sets the statistics; without, logits are about zero
    network(x)
    network.eval()

    with torch.no_grad():
        together, alone = network(x), torch.cat([network(image[None]) for image in x])
        backwards = network(x.flip(0)).flip(0)

    tolerance = 1e-3 * float(together.std())
    torch.testing.assert_close(together, alone, rtol=0, atol=tolerance)
    torch.testing.assert_close(together, backwards, rtol=0, atol=tolerance)


def test_initial_values_follow_from_the_seed_and_disturb_nobody(case: Case) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = case.build(3, "network", 0).state_dict()
    after = torch.get_rng_state()
    torch.manual_seed(12)
    second = case.build(3, "network", 0).state_dict()
    other = case.build(3, "network", 1).state_dict()

    assert torch.equal(before, after)
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_training_step_draws_nothing_from_the_global_generator(case: Case) -> None:
    network = case.build(0)
    before = torch.get_rng_state()

    network(case.images(4)).square().sum().backward()

    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_weights_carry_over_to_a_network_of_another_seed(case: Case) -> None:
    network, other = case.build(0).eval(), case.build(1).eval()
    x = case.images(2)

    other.load_state_dict(network.state_dict())

    with torch.no_grad():
        assert torch.equal(network(x), other(x))


def test_last_layer_makes_the_logits_of_the_features(case: Case) -> None:
    network = case.build(0).eval()
    x = case.images(3)

    with torch.no_grad():
        features = network.embed(x)
        logits = network.network.classify(features)

    assert features.ndim == 2
    torch.testing.assert_close(logits, network(x))


def test_pixels_are_normalised_before_the_network_sees_them(tiny_convnet: Normalized) -> None:
    x = torch.rand(2, 3, 8, 8, generator=generator(0, "images"))
    mean = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)
    std = torch.tensor([0.2, 0.25, 0.3]).view(1, 3, 1, 1)

    normalized = (x - mean) / std

    torch.testing.assert_close(tiny_convnet.normalize(x), normalized)
    torch.testing.assert_close(tiny_convnet(x), tiny_convnet.network(normalized))
    torch.testing.assert_close(tiny_convnet.denormalize(normalized), x)
