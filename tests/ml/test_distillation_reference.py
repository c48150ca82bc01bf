"""Numbers of the distillation methods against hand-derived cases and naive programs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.catalog.distillation import (
    DistributionMatchingParams,
    GradientMatchingParams,
    feature_rate,
)
from overproof.core.spec import PluginRef
from overproof.ml.distill.base import Problem
from overproof.ml.distill.distances import DISTANCES, cosine, layerwise_cosine, squared
from overproof.ml.distill.distribution_matching import DistributionMatching
from overproof.ml.distill.gradient_matching import GradientMatching, loops_for
from overproof.ml.distill.herding import herd
from overproof.ml.distill.passes import class_gradients
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import SyntheticImages
from overproof.ml.models.base import build
from overproof.ml.seeding import generator


def gradients_of_a_convnet(classes: int, stream: torch.Generator) -> list[Tensor]:
    """Shapes of the parameters of a ConvNet of depth 3 for ten classes."""
    shapes: list[tuple[int, ...]] = []
    for channels in (3, 128, 128):
        shapes += [(128, channels, 3, 3), (128,), (128,), (128,)]
    shapes += [(10, 2048), (10,)]
    return [torch.randn(classes, *shape, generator=stream) for shape in shapes]


def test_distance_of_equal_gradients_is_zero_and_of_opposite_ones_two_a_row() -> None:
    ours = gradients_of_a_convnet(2, generator(0, "gradients"))

    equal = layerwise_cosine(ours, ours)
    opposite = layerwise_cosine(ours, [-each for each in ours])

    assert equal.abs().max() < 394 * 1e-5
    assert torch.allclose(opposite, torch.full((2,), 2.0 * (3 * 128 + 10)), atol=1e-2)


def test_layerwise_distance_ignores_one_dimensional_parameters() -> None:
    ours = [torch.ones(1, 2, 3), torch.ones(1, 2)]
    theirs = [torch.ones(1, 2, 3), -torch.ones(1, 2)]

    assert layerwise_cosine(ours, theirs).item() == pytest.approx(0, abs=1e-5)
    assert squared(ours, theirs).item() == pytest.approx(8)
    assert cosine(ours, theirs).item() == pytest.approx(1 - (6 - 2) / 8, abs=1e-5)


def test_layerwise_distance_of_a_hand_made_case() -> None:
    # Rows at 60° and at 180°: (1 - 1/2) + (1 + 1).
    ours = [torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])]
    theirs = [torch.tensor([[[1.0, 3.0**0.5], [0.0, -5.0]]])]

    assert layerwise_cosine(ours, theirs).item() == pytest.approx(2.5, abs=1e-5)


def test_layerwise_distance_equals_a_naive_loop() -> None:
    stream = generator(1, "gradients")
    ours, theirs = gradients_of_a_convnet(1, stream), gradients_of_a_convnet(1, stream)

    expected = 0.0
    for left, right in zip(ours, theirs, strict=True):
        if left[0].dim() == 1:
            continue
        for a, b in zip(left[0], right[0], strict=True):
            a, b = a.reshape(-1), b.reshape(-1)
            expected += 1 - float(a @ b / (a.norm() * b.norm() + 1e-6))

    assert layerwise_cosine(ours, theirs).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("distance", DISTANCES)
def test_fused_classes_equal_one_class_after_another(distance: str, problem: Problem) -> None:
    params = GradientMatchingParams.model_validate(
        {"iterations": 1, "outer_loop": 2, "inner_loop": 1, "real_batch": 5, "distance": distance}
    )
    made = []
    for classes_at_once in (1, 4):
        method = GradientMatching(params, problem)
        method._core.classes_at_once = classes_at_once
        losses = [method.step(index)["loss"] for index in range(2)]
        made.append((method.result().images, losses))

    assert torch.allclose(made[0][0], made[1][0], atol=1e-5)
    assert made[0][1] == pytest.approx(made[1][1], rel=1e-4)


def test_gradient_matching_moves_images_as_a_naive_program_does(problem: Problem) -> None:
    params = GradientMatchingParams(iterations=1, outer_loop=2, inner_loop=1, real_batch=6)
    method = GradientMatching(params, problem)

    for index in range(2):
        method.step(index)

    model = problem.build()
    network = problem.build("network", 0).network
    images = SyntheticImages(problem, RealImages(problem.dataset, problem.device), "noise", model)
    leaf = images.values.flatten(0, 1).requires_grad_(True)
    labels = torch.arange(10).repeat_interleave(2)
    image_optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=0.5)
    for index in range(2):
        image_optimizer.zero_grad()
        numbers = RealImages(problem.dataset, problem.device).draw(
            6, generator(problem.seed, "real", index)
        )
        loss = torch.zeros(())
        for label in range(10):
            real = RealImages(problem.dataset, problem.device).pixels(numbers[label])
            target = torch.autograd.grad(
                functional.cross_entropy(network(model.normalize(real)), torch.full((6,), label)),
                list(network.parameters()),
            )
            ours = torch.autograd.grad(
                functional.cross_entropy(network(leaf[labels == label]), labels[labels == label]),
                list(network.parameters()),
                create_graph=True,
            )
            for a, b in zip(ours, target, strict=True):
                if a.dim() > 1:
                    a, b = a.flatten(1), b.flatten(1)
                    loss = (
                        loss + (1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + 1e-6)).sum()
                    )
        loss.backward()  # type: ignore[no-untyped-call]
        image_optimizer.step()
        if index == 0:
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
            order = torch.randperm(20, generator=generator(problem.seed, "inner-loop", 0, 0))
            optimizer.zero_grad()
            functional.cross_entropy(network(leaf.detach()[order]), labels[order]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    expected = model.denormalize(leaf.detach())
    assert torch.allclose(method.result().images, expected, atol=1e-5)


def test_matching_settles_batch_norms_on_real_images_and_holds_them(problem: Problem) -> None:
    network = PluginRef(name="convnet", params={"width": 4, "depth": 1, "norm": "batch"})
    params = GradientMatchingParams(iterations=1, outer_loop=1, real_batch=4)
    with_batch_norm = Problem(**{**vars(problem), "network": network})
    method = GradientMatching(params, with_batch_norm)
    fresh = build(network, problem.dataset.facts, problem.seed, "network", 0).network

    method.step(0)

    settled = method._network
    assert settled is not None
    assert not settled.features[1].training  # type: ignore[index, union-attr]
    assert not torch.equal(
        settled.state_dict()["features.1.running_mean"],
        fresh.state_dict()["features.1.running_mean"],
    )
    assert int(settled.state_dict()["features.1.num_batches_tracked"]) == 1


def test_class_gradients_of_a_linear_network_are_known() -> None:
    # Cross entropy of zero logits: (1/K - onehot) times the mean image, by the weights.
    layer = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(layer.weight)
    network = nn.Sequential(nn.Flatten(), layer)
    x = torch.arange(16.0).view(2, 2, 1, 2, 2)

    gradients = class_gradients(network, ["1.weight"], x, torch.tensor([0, 1]))[0]

    means = x.flatten(2).mean(dim=1)
    assert torch.allclose(gradients[0], torch.stack([-0.5 * means[0], 0.5 * means[0]]))
    assert torch.allclose(gradients[1], torch.stack([0.5 * means[1], -0.5 * means[1]]))


def test_published_loops_are_kept_and_others_have_about_their_product() -> None:
    assert [loops_for(n) for n in (1, 10, 20, 30, 40, 50)] == [
        (1, 1),
        (10, 50),
        (20, 25),
        (30, 20),
        (40, 15),
        (50, 10),
    ]
    assert loops_for(5) == (5, 100)
    assert loops_for(600) == (600, 1)


def test_large_sets_of_cifar10_move_in_larger_steps() -> None:
    assert [feature_rate("cifar-10", n) for n in (50, 100, 1250)] == [1.0, 10.0, 10.0]
    assert feature_rate("cifar-100", 100) == 1.0


@pytest.mark.parametrize("rows_at_once", [1, 1000])
def test_distribution_matching_moves_images_as_a_naive_program_does(
    problem: Problem, rows_at_once: int
) -> None:
    params = DistributionMatchingParams(iterations=2, real_batch=5, strategy="none")
    method = DistributionMatching(
        params, Problem(**{**vars(problem), "rows_at_once": rows_at_once})
    )

    losses = [method.step(index)["loss"] for index in range(2)]

    model = problem.build()
    real = RealImages(problem.dataset, problem.device)
    leaf = SyntheticImages(problem, real, "real", model).values.requires_grad_(True)
    optimizer = torch.optim.SGD([leaf], lr=1.0, momentum=0.5)
    expected = []
    for index in range(2):
        network = problem.build("network", index).network
        numbers = real.draw(5, generator(problem.seed, "real", index))
        optimizer.zero_grad()
        loss = torch.zeros(())
        for label in range(10):
            target = network.embed(model.normalize(real.pixels(numbers[label]))).detach().mean(0)
            loss = loss + ((target - network.embed(leaf[label]).mean(0)) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    pixels = model.denormalize(leaf.detach()).flatten(0, 1)
    assert torch.allclose(method.result().images, pixels, atol=1e-5)


def test_herding_equals_brute_force() -> None:
    features = torch.randn(9, 3, generator=generator(0, "features"), dtype=torch.float64)

    chosen = herd(features, 5).tolist()

    mean, picked = features.mean(dim=0), list[int]()
    for k in range(5):
        costs = {
            i: float(((k + 1) * mean - features[[*picked, i]].sum(dim=0)).norm())
            for i in range(9)
            if i not in picked
        }
        picked.append(min(costs, key=lambda i: costs[i]))
    assert chosen == picked


def test_herding_of_a_hand_made_case() -> None:
    # Mean 2: first 2, then of 1, 3, 4, 0 those that keep the sums at 4, 6, 8, 10.
    features = torch.tensor([[4.0], [0.0], [2.0], [3.0], [1.0]])

    chosen = herd(features, 5)

    sums = list(itertools.accumulate(features[chosen].flatten().tolist()))
    assert chosen.tolist()[0] == 2
    assert sums == [2, 5, 6, 10, 10]


def test_drawn_images_are_different_ones_of_their_class(problem: Problem) -> None:
    real = RealImages(problem.dataset, problem.device)

    numbers = real.draw(20, generator(0, "draw"))

    assert all(len(row.unique()) == 20 for row in numbers)
    assert torch.equal(numbers.sort(dim=1).values.flatten(), torch.arange(200))
    of_class = problem.dataset.train_images[problem.dataset.train_labels == 7].float() / 255
    assert torch.equal(real.pixels(numbers[7].sort().values), of_class)
