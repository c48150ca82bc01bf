"""DREAM+: both distances, networks that know something already, images around centres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.ml.distill.base import Problem
from overproof.ml.distill.bidirectional_matching import BidirectionalMatching
from overproof.ml.distill.clustering import nearest_rows, nearest_to_any
from overproof.ml.seeding import generator

SMALL = {
    "iterations": 2,
    "outer_loop": 2,
    "clusters": 4,
    "rounds": 3,
    "network_images": 16,
    "network_batch": 16,
}


def a_method(problem: Problem, **over: Any) -> BidirectionalMatching:
    ref = PluginRef(name="dream-plus", params=SMALL | over)
    made: BidirectionalMatching = DISTILLATION.load("dream-plus")(
        DISTILLATION.resolve(ref), problem
    )
    return made


@pytest.mark.parametrize("distance", ["squared", "absolute"])
def test_gradient_is_that_of_both_distances_class_by_class(distance: str, problem: Problem) -> None:
    method = a_method(problem, distance=distance)
    network = problem.build("network").network
    values = torch.rand(10, 2, 1, 8, 8, generator=generator(0, "values"))
    real = torch.rand(10, 3, 1, 8, 8, generator=generator(0, "real"))

    gradient, loss = method.gradient(
        network, values, lambda leaf, group: (real[group], 2 * leaf - 1)
    )

    def far(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum() if distance == "squared" else (a - b).abs().sum()

    filters = [each for each in network.parameters() if each.ndim > 2]
    x = values.clone().requires_grad_(True)
    total = torch.zeros(())
    for label in range(10):
        goal = torch.full((3,), label)
        theirs = torch.autograd.grad(functional.cross_entropy(network(real[label]), goal), filters)
        synthetic = 2 * x[label] - 1
        ours = torch.autograd.grad(
            functional.cross_entropy(network(synthetic), goal[:2]), filters, create_graph=True
        )
        total = total + sum(far(a, b) for a, b in zip(ours, theirs, strict=True))
        features = network.embed(real[label]).mean(dim=0).detach()
        total = total + far(network.embed(synthetic).mean(dim=0), features)
    (expected,) = torch.autograd.grad(total, x)
    torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(loss, total.detach(), atol=1e-3, rtol=1e-4)


def test_networks_know_something_before_they_are_matched_on(problem: Problem) -> None:
    def loss_of(epochs: int) -> float:
        method = a_method(problem, pretraining=epochs, network_strategy="none")
        trainee = method._taught(problem.build("network", 0).network)
        method.prepare(trainee, 0)
        x = method._normalizer.normalize(problem.dataset.train_images.float() / 255)
        loss = functional.cross_entropy(trainee.network(x), problem.dataset.train_labels)
        return float(loss.detach())

    assert loss_of(8) < loss_of(1) < 2.5
    assert loss_of(8) < 1.8


def test_each_centre_takes_its_nearest_points_and_none_twice() -> None:
    points = torch.tensor([[[0.0], [1.0], [3.0], [9.0], [10.0], [11.5]]])
    centres = torch.tensor([[[0.9], [1.4]]])

    assert nearest_rows(points, [6], centres).tolist() == [[1, 0]]
    assert nearest_rows(points, [6], centres, 2).tolist() == [[1, 0, 2, 3]]


def test_points_nearest_to_any_centre_may_share_one() -> None:
    points = torch.tensor([[[0.0], [0.2], [0.3], [9.0], [99.0]]])
    centres = torch.tensor([[[0.22], [8.0]]])

    assert nearest_to_any(points, [5], centres).tolist() == [[1, 2]]
    assert nearest_to_any(points, [3], centres, 2).tolist()[0][:3] == [1, 2, 0]


@pytest.mark.parametrize("nearest", [1, 2, 4])
def test_real_batch_has_as_many_images_however_many_share_a_centre(
    nearest: int, problem: Problem
) -> None:
    method = a_method(problem, nearest=nearest)

    numbers = method.real_numbers(problem.build().network, 0)

    assert numbers.shape == (10, 4)
    assert all(len(set(row)) == 4 for row in numbers.tolist())
    labels = torch.searchsorted(torch.arange(0, 200, 20), numbers.flatten(), right=True) - 1
    assert labels.tolist() == [label for label in range(10) for _ in range(4)]


def test_tiny_imagenet_takes_the_images_nearest_to_any_centre(problem: Problem) -> None:
    usual = a_method(problem)
    tiny = a_method(replace(problem, dataset=replace(problem.dataset, name="tiny-imagenet")))

    network = problem.build().network
    assert not torch.equal(usual.real_numbers(network, 0), tiny.real_numbers(network, 0))
