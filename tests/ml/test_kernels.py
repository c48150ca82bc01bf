"""Networks out of our kernels against torch's layers in float64 and against themselves in eager."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.core.spec import PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.datasets.base import Dataset
from overproof.ml.kernels import library as built
from overproof.ml.kernels.network import NormReluPool, WinogradConvolution, fast_network
from overproof.ml.kernels.operations import (
    backward_weights,
    convolution,
    norm_relu_pool,
    winograd_weights,
)
from overproof.ml.models.base import Normalized, build
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe
from tests.ml.victims import an_attack

CPU = torch.device("cpu")
MUCH = 10**12  # multiplications: more than preparing costs


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [(4, 4), (8, 8), (16, 12), (5, 7), (3, 1)])
def test_convolution_and_its_gradient_are_those_of_the_direct_sum(size: tuple[int, int]) -> None:
    x, weight, bias = normal(19, 32, *size), normal(48, 32, 3, 3, seed=1) / 17, normal(48, seed=2)
    ours, exact = x.clone().requires_grad_(True), x.double().requires_grad_(True)

    result = convolution(ours, winograd_weights(weight), backward_weights(weight), bias)
    expected = functional.conv2d(exact, weight.double(), bias.double(), padding=1)
    downstream = normal(*expected.shape, seed=3)
    (gradient,) = torch.autograd.grad(result, ours, downstream)
    (exact_gradient,) = torch.autograd.grad(expected, exact, downstream.double())

    torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=5e-5)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0.0, atol=5e-5)


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (32, 32)])
def test_fused_layer_and_its_gradient_are_those_of_its_three_layers(
    size: tuple[int, int],
) -> None:
    x, weight, bias = 2.0 * normal(5, 32, *size) + 1.0, normal(32, seed=1), normal(32, seed=2)
    ours, exact = x.clone().requires_grad_(True), x.double().requires_grad_(True)

    result = norm_relu_pool(ours, weight, bias, 1e-5)
    normed = functional.group_norm(exact, 32, weight.double(), bias.double(), 1e-5)
    expected = functional.avg_pool2d(normed.relu(), 2)
    downstream = normal(*expected.shape, seed=3)
    (gradient,) = torch.autograd.grad(result, ours, downstream)
    (exact_gradient,) = torch.autograd.grad(expected, exact, downstream.double())

    torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def victim(digits: Dataset) -> Normalized:
    recipe = Recipe(epochs=10, learning_rate=0.1, momentum=0.9, weight_decay=0.0, batch_size=50)
    training = Training(
        [build(PluginRef(name="convnet", params={"width": 16, "depth": 2}), digits.facts, 0)],
        [0],
        digits.train_images,
        digits.train_labels,
        recipe,
        means=Means.EAGER,
        device=CPU,
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    return training.networks()[0].eval().requires_grad_(False)


@pytest.mark.parametrize(
    "attack",
    [
        an_attack("pgd-linf", steps=10),
        an_attack("cw-linf", steps=10),
        an_attack("apgd-t-linf", steps=10, targets=3),
        an_attack("fab-t-linf", steps=10, targets=3),
        an_attack("square-linf", queries=60),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_flags_are_those_of_eager_layers(
    attack: Attack[Any], victim: Normalized, digits: Dataset
) -> None:
    fast, _ = fast_network(victim, MUCH, device=CPU)
    x, y = pixels_of(digits.test_images), digits.test_labels

    expected = attack(victim, x, y, radius=24 / 255)
    outcome = attack(fast, x, y, radius=24 / 255)

    kinds = [type(module) for module in fast.modules()]
    assert kinds.count(WinogradConvolution) == 1
    assert kinds.count(NormReluPool) == 2
    assert 0.05 < float(expected.worst.float().mean()) < 0.95
    assert float((outcome.worst == expected.worst).float().mean()) >= 0.995
    assert float((outcome.prediction == expected.prediction).float().mean()) >= 0.995


def test_all_networks_keep_their_logits(colour_facts: Any) -> None:
    for name, params in (
        ("convnet", {"width": 16, "depth": 2, "activation": "swish"}),
        ("convnet", {"width": 32, "depth": 1, "pooling": "max"}),
        ("resnet18", {}),
    ):
        model = build(PluginRef(name=name, params=params), colour_facts, 0).eval()
        x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))

        fast, _ = fast_network(model, MUCH, device=CPU)

        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        assert any(isinstance(module, nn.Conv2d) for module in model.modules())


def test_what_gains_nothing_stays_eager(
    victim: Normalized, tiny_convnet: Normalized, monkeypatch: pytest.MonkeyPatch
) -> None:
    built.library.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    reasons = {
        "longer than it saves": fast_network(victim, 1_000, device=CPU),
        "GPU": fast_network(victim, MUCH, device=torch.device("cuda")),
        "no layer": fast_network(tiny_convnet, MUCH, device=CPU),
        "no C++ compiler": fast_network(victim, MUCH, device=CPU),
    }
    built.library.cache_clear()

    for words, (model, reason) in reasons.items():
        assert words in reason
        assert model in (victim, tiny_convnet)
