"""Canvases and the methods on them against hand-made cases and naive programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.catalog.canvases import (
    ImprovedMatchingParams,
    ParameterizationParams,
    RepresentativeParams,
    improved_matching_preset,
    parameterization_preset,
)
from overproof.errors import InvalidSpec, ShapeError
from overproof.ml.augment import composed, dsa
from overproof.ml.augment.cutmix import cutmix
from overproof.ml.distill.base import DistilledSet, Problem
from overproof.ml.distill.canvas import CanvasDescent, decode, encode
from overproof.ml.distill.clustering import representatives
from overproof.ml.distill.distances import absolute
from overproof.ml.distill.improved_matching import ImprovedMatching
from overproof.ml.distill.parameterization import EfficientParameterization
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.representative_matching import RepresentativeMatching
from overproof.ml.models.base import BodyAndHead, Normalized
from overproof.ml.seeding import generator

SMALL: dict[str, Any] = {
    "iterations": 1,
    "outer_loop": 2,
    "real_batch": 5,
    "network_images": 16,
    "network_batch": 8,
    "learning_rate": 0.05,
    "strategy": "none",
    "network_strategy": "none",
}


def some_images(count: int, size: tuple[int, int] = (8, 8)) -> Tensor:
    return torch.rand(count, 3, *size, generator=generator(0, "images"))


# ---- canvases ----------------------------------------------------------------------------------


def test_decoded_images_are_enlarged_nearest_shrunken_originals_in_their_order() -> None:
    images = some_images(8)

    decoded = decode(encode(images, 2, "nearest"), 2)

    small = images[:, :, ::2, ::2]  # the nearest pixel of each 2 × 2 block is its first
    assert torch.allclose(decoded, functional.interpolate(small, scale_factor=2, mode="bilinear"))


def test_tiles_of_a_canvas_come_row_by_row_and_labels_follow_them() -> None:
    quarters = (
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    )
    canvases = torch.stack([quarters, quarters + 4]).unsqueeze(1)
    made = DistilledSet(canvases, torch.tensor([0, 1]), canvas_factor=2).decoded()

    assert made.images.mean(dim=(1, 2, 3)).tolist() == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])
    assert made.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("size", "factor"), [((8, 8), 3), ((7, 5), 2), ((8, 6), 2)])
def test_decoding_equals_a_naive_program(size: tuple[int, int], factor: int) -> None:
    canvases = some_images(3, size)

    decoded = decode(canvases, factor)

    (height, width), expected = size, []
    h, w = -(-height // factor), -(-width // factor)
    for canvas in canvases:
        padded = torch.full((3, h * factor, w * factor), 0.5)
        padded[:, :height, :width] = canvas
        for row in range(factor):
            for column in range(factor):
                tile = padded[:, row * h : row * h + h, column * w : column * w + w]
                expected.append(functional.interpolate(tile[None], size, mode="bilinear")[0])
    assert torch.allclose(decoded, torch.stack(expected))


@pytest.mark.parametrize(("size", "factor"), [((7, 5), 2), ((8, 8), 3)])
def test_each_image_is_found_in_its_tile_where_the_factor_does_not_divide(
    size: tuple[int, int], factor: int
) -> None:
    shades = torch.arange(1.0, factor**2 + 1)
    images = shades.view(-1, 1, 1, 1).expand(-1, 1, *size)

    decoded = decode(encode(images, factor, "bilinear"), factor)

    assert torch.equal(decoded[:, 0, 0, 0], shades)


def test_canvases_too_small_for_their_tiles_are_refused() -> None:
    with pytest.raises(ShapeError, match="4 × 4 pixels cannot hold 3 × 3 tiles"):
        decode(torch.zeros(1, 1, 4, 4), 3)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_steps_in_turn_equal_sequential_sgd_on_one_tensor(momentum: float) -> None:
    stream = generator(0, "steps")
    start = torch.randn(4, 2, 3, generator=stream, dtype=torch.float64)
    goal = torch.randn(4, 2, 3, generator=stream, dtype=torch.float64)
    leaf = start.clone().requires_grad_(True)
    optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=momentum)
    losses = []

    descent = CanvasDescent(start.clone())
    ours = [
        descent.step_in_turn(
            lambda x: (4 * (x - goal) ** 3, ((x - goal) ** 4).sum()),
            learning_rate=0.1,
            momentum=momentum,
        )
        for _ in range(3)
    ]
    for _ in range(3):
        total = 0.0
        for label in range(4):
            optimizer.zero_grad()
            loss = ((leaf[label] - goal[label]) ** 4).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        losses.append(total)

    assert torch.allclose(descent.values, leaf.detach(), rtol=1e-12, atol=1e-13)
    assert [each.item() for each in ours] == pytest.approx(losses, rel=1e-12)


# ---- augmentation ------------------------------------------------------------------------------


def test_composed_augmentation_applies_every_stage_in_order() -> None:
    x = some_images(6)
    families = ("color", "crop", "cutout", "flip", "scale", "rotate")

    drawn = composed.draw(families, generator(0, "draw"), 3, siamese=True)
    made = composed.apply(x, drawn)

    assert [stage.families for stage in drawn] == [
        ("flip",),
        ("color",),
        ("crop", "scale", "rotate"),
        ("cutout",),
    ]
    expected = x
    for stage in drawn:
        expected = dsa.apply(expected, stage)
    assert torch.equal(made, expected)
    assert torch.equal(composed.apply(x, composed.draw((), generator(0), 3, siamese=True)), x)


def test_composed_augmentation_is_the_same_for_batches_of_different_size() -> None:
    image = some_images(1)
    families = ("color", "crop", "cutout")

    pair = [
        composed.apply(
            image.expand(count, -1, -1, -1),
            composed.draw(families, generator(5, "draw"), 1, siamese=True),
        )
        for count in (2, 7)
    ]

    assert torch.allclose(pair[0][:1].expand_as(pair[1]), pair[1])


def test_cutmix_pastes_one_box_and_weighs_labels_by_what_is_left() -> None:
    x = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 8, 8)
    labels = torch.arange(6)
    shares = []

    for seed in range(30):
        mixed, targets = cutmix(x, labels, 6, generator(seed, "mix"))
        for image, target, own in zip(mixed, targets, labels, strict=True):
            counts = torch.bincount(image.long().flatten(), minlength=6) / 64
            assert torch.allclose(counts, target)
            shares.append(float(counts[own]))

    assert min(shares) < 0.5
    assert max(shares) == 1.0


def test_absolute_distance_of_a_hand_made_case() -> None:
    ours, theirs = [torch.tensor([[1.0, -2.0]])], [torch.tensor([[0.0, 3.0]])]

    assert absolute(ours, theirs).tolist() == [6.0]


# ---- IDC and DREAM -----------------------------------------------------------------------------


def naive_parameterization(
    method: EfficientParameterization, problem: Problem, numbers: list[Tensor]
) -> tuple[Tensor, list[float]]:
    """Two steps, class after class, with torch's optimizers and without the shared cores."""
    model, real = problem.build(), RealImages(problem.dataset, problem.device)
    network = problem.build("network", 0).network
    leaf = method._canvases.values.clone().requires_grad_(True)
    canvas_optimizer = torch.optim.SGD([leaf], lr=0.05, momentum=0.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    weights = [each for each in network.parameters() if each.dim() == 4]
    losses = []
    for index in range(2):
        total = 0.0
        for label in range(10):
            seen = model.normalize(real.pixels(numbers[index][label]))
            target = torch.autograd.grad(
                functional.cross_entropy(network(seen), torch.full((len(seen),), label)), weights
            )
            tiles = functional.interpolate(
                torch.cat(
                    [leaf[label][:, :, y : y + 4, x : x + 4] for y in (0, 4) for x in (0, 4)]
                ),
                scale_factor=2,
                mode="bilinear",
            )
            logits = network(model.normalize(tiles))
            ours = torch.autograd.grad(
                functional.cross_entropy(logits, torch.full((8,), label)),
                weights,
                create_graph=True,
            )
            loss = sum(
                (((a - b) ** 2).sum() for a, b in zip(ours, target, strict=True)), torch.zeros(())
            )
            canvas_optimizer.zero_grad()
            (leaf.grad,) = torch.autograd.grad(loss, leaf)
            canvas_optimizer.step()
            total += loss.item()
        losses.append(total)
        stream = generator(problem.seed, "network-training", index)
        for _ in range(2):
            drawn, labels = real.draw_any(8, stream)
            composed.draw((), stream, 8, siamese=False)
            x, targets = model.normalize(real.pixels(drawn)), functional.one_hot(labels, 10).float()
            if float(torch.rand((), generator=stream)) < 0.5:
                x, targets = cutmix(x, labels, 10, stream)
            optimizer.zero_grad()
            (-(targets * network(x).log_softmax(1)).sum(1).mean()).backward()
            optimizer.step()
    return leaf.detach().flatten(0, 1), losses


def test_idc_moves_canvases_as_a_naive_program_does(problem: Problem) -> None:
    method = EfficientParameterization(ParameterizationParams(**SMALL), problem)
    real = RealImages(problem.dataset, problem.device)
    numbers = [real.draw(5, generator(problem.seed, "real", index)) for index in range(2)]
    expected, expected_losses = naive_parameterization(method, problem, numbers)

    losses = [method.step(index)["loss"] for index in range(2)]

    assert losses == pytest.approx(expected_losses, rel=1e-4)
    assert torch.allclose(method.result().images, expected, atol=1e-5)


def test_dream_matches_on_representatives_of_the_network_until_they_are_found_anew(
    problem: Problem,
) -> None:
    params = RepresentativeParams(**SMALL | {"clusters": 5, "interval": 2, "rounds": 3})
    method = RepresentativeMatching(params, problem)
    model = problem.build()
    model.network = problem.build("network", 0).network
    found = representatives(
        model.eval(),
        RealImages(problem.dataset, problem.device),
        5,
        rounds=3,
        seed=problem.seed,
        labels=["real", 0],
        rows_at_once=512,
    )
    expected, expected_losses = naive_parameterization(method, problem, [found, found])

    losses = [method.step(index)["loss"] for index in range(2)]

    assert losses == pytest.approx(expected_losses, rel=1e-4)
    assert torch.allclose(method.result().images, expected, atol=1e-5)


def test_factor_and_number_of_clusters_are_parameters(problem: Problem) -> None:
    made = {
        factor: EfficientParameterization(
            ParameterizationParams(**SMALL | {"factor": factor}), problem
        ).result()
        for factor in (1, 2, 3)
    }
    dream = RepresentativeMatching(RepresentativeParams(**SMALL | {"clusters": 7}), problem)

    assert {factor: len(each.decoded().images) for factor, each in made.items()} == {
        1: 20,
        2: 80,
        3: 180,
    }
    dream.step(0)
    assert dream.state()["representatives"].shape == (10, 7)


def test_idc_uses_some_of_many_decoded_images(problem: Problem) -> None:
    few = EfficientParameterization(
        ParameterizationParams(**SMALL | {"synthetic_batch": 1}), problem
    )
    before = few.result().decoded().images

    few.step(0)

    moved = (few.result().decoded().images != before).flatten(1).any(dim=1).view(10, 2, 4)
    # One tile a class, and bilinear enlarging does not leave its tile.
    assert moved.sum(dim=(1, 2)).tolist() == [1] * 10


@pytest.mark.parametrize("at_once", [1, 4])
def test_groups_of_classes_give_what_all_classes_together_give(
    at_once: int, problem: Problem
) -> None:
    idc = ParameterizationParams(**SMALL | {"strategy": "color_crop_cutout", "synthetic_batch": 3})
    idm = ImprovedMatchingParams(iterations=1, real_batch=4, training_steps=1)
    made = []
    for classes in (at_once, 10):
        gradients = EfficientParameterization(idc, problem)
        gradients._core.classes_at_once = classes
        features = ImprovedMatching(idm, problem)
        features._classes_at_once = classes
        losses = [gradients.step(0)["loss"], features.step(0)["loss"]]
        made.append((losses, gradients.result().images, features.result().images))

    assert made[0][0] == pytest.approx(made[1][0], rel=1e-4)
    assert torch.allclose(made[0][1], made[1][1], atol=1e-5)
    assert torch.allclose(made[0][2], made[1][2], atol=1e-5)


# ---- what published code does and did not mean ---------------------------------------------------


def test_paper_variant_begins_with_the_first_images_of_each_class(problem: Problem) -> None:
    params = ParameterizationParams(**SMALL | {"variant": "paper", "factor": 1})

    made = EfficientParameterization(params, problem).result()

    labels = problem.dataset.train_labels
    first = [problem.dataset.train_images[labels == label][:2] for label in range(10)]
    assert torch.equal(made.images, torch.cat(first).float() / 255)


def test_paper_variant_clusters_features_of_pixels_as_they_are(problem: Problem) -> None:
    plain = replace(problem, dataset=replace(problem.dataset, mean=(0.0,), std=(1.0,)))
    params = RepresentativeParams(**SMALL | {"clusters": 5, "rounds": 3})

    def chosen(variant: str, of: Problem) -> Tensor:
        method = RepresentativeMatching(params.model_copy(update={"variant": variant}), of)
        return method.real_numbers(of.build("network").network, 0)

    assert torch.equal(chosen("paper", problem), chosen("default", plain))
    assert not torch.equal(chosen("paper", problem), chosen("default", problem))


def test_paper_variant_means_accuracies_and_forgets_them_at_evaluations(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overproof.ml.distill.improved_matching._EVALUATED_EVERY", 2)
    method = ImprovedMatching(
        ImprovedMatchingParams(
            variant="paper",
            iterations=3,
            real_batch=4,
            first_networks=1,
            networks=1,
            interval=100,
            networks_trained=1,
            training_steps=2,
        ),
        problem,
    )
    seen = []

    for index in range(3):
        method.step(index)
        state = method.state()
        seen.append((int(state["accuracy_steps"]), float(state["accuracies"])))

    assert [steps for steps, _ in seen] == [2, 4, 2]
    # Shares of whole batches of 256: sums of the steps' hits over steps.
    assert all(
        (accuracy * steps * 256) % 1 == pytest.approx(0, abs=1e-2) for steps, accuracy in seen
    )


class Linear(Problem):
    """A problem whose network is one linear layer."""

    def build(self, *labels: str | int) -> Normalized:
        network = BodyAndHead(nn.Flatten(), nn.Linear(64, 10))
        return Normalized(network, self.dataset.facts)


def test_networks_without_convolutions_are_refused_by_idc(problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="convolutions"):
        EfficientParameterization(ParameterizationParams(**SMALL), Linear(**vars(problem)))


def test_presets_are_the_published_ones() -> None:
    cifar, mnist = parameterization_preset("cifar-10"), parameterization_preset("mnist")

    assert cifar.learning_rate_for(10, (32, 32)) == pytest.approx(5e-3)
    assert cifar.learning_rate_for(50, (32, 32)) == pytest.approx(2.5e-2)
    assert (mnist.distance, mnist.network_images) == ("absolute", 500)
    assert mnist.learning_rate_for(10, (28, 28)) == pytest.approx(1e-4)
    fashion = parameterization_preset("fashion-mnist").learning_rate_for(10, (28, 28))
    assert fashion == pytest.approx(1e-4 * (28 / 32) ** 2)
    weights = {
        (name, n): improved_matching_preset(name, n).entropy_weight
        for name in ("cifar-10", "cifar-100", "tiny-imagenet")
        for n in (1, 10, 50)
    }
    assert list(weights.values()) == [0.5, 0.5, 0.1, 0.5, 0.1, 0.1, 0.5, 0.5, 0.8]
    assert improved_matching_preset("cifar-10", 1).interval == 5
    assert improved_matching_preset("cifar-100", 10).training_steps == 50


# ---- IDM ---------------------------------------------------------------------------------------


def test_idm_moves_canvases_as_a_naive_program_does(problem: Problem) -> None:
    params = ImprovedMatchingParams(
        iterations=1, real_batch=6, first_networks=1, interval=7, strategy="none", networks=1
    )
    method = ImprovedMatching(params, problem)
    leaf = method._canvases.values.clone().requires_grad_(True)
    model, real = problem.build(), RealImages(problem.dataset, problem.device)
    network = problem.build("network", 0).network
    method._member = lambda network, made=method._member: known(made(network))  # type: ignore[method-assign, misc]

    def known(member: Any) -> Any:
        member.accuracy = torch.tensor(0.25)
        return member

    loss = method.step(0)["loss"]

    numbers = real.draw(6, generator(problem.seed, "real", 0))
    optimizer, total = torch.optim.SGD([leaf], lr=0.2, momentum=0.5), 0.0
    for label in range(10):
        target = network.embed(model.normalize(real.pixels(numbers[label]))).detach().mean(0)
        tiles = torch.cat([leaf[label][:, :, y : y + 4, x : x + 4] for y in (0, 4) for x in (0, 4)])
        seen = functional.interpolate(tiles, scale_factor=2, mode="bilinear")
        of_class = ((target - network.embed(seen).mean(0)) ** 2).sum()
        entropy = functional.cross_entropy(network(seen), torch.full((8,), label))
        of_class = of_class + 0.5 * 25 * entropy
        optimizer.zero_grad()
        (leaf.grad,) = torch.autograd.grad(of_class, leaf)
        optimizer.step()
        total += of_class.item()
    assert loss == pytest.approx(total, rel=1e-4)
    expected = model.denormalize(leaf.detach()).flatten(0, 1)
    assert torch.allclose(method.result().images, expected, atol=1e-4)


def test_queue_never_holds_more_networks_than_asked_for_and_drops_the_oldest(
    problem: Problem,
) -> None:
    params = ImprovedMatchingParams(
        iterations=6, real_batch=4, networks=4, interval=1, training_steps=1, network_batch=8
    )
    method = ImprovedMatching(params, problem)
    oldest, lengths = method._queue[0], []

    for index in range(6):
        method.step(index)
        lengths.append(len(method._queue))

    assert lengths == [4, 4, 4, 4, 4, 4]
    assert oldest not in method._queue


def test_cross_entropy_of_an_untrained_network_weighs_nothing(problem: Problem) -> None:
    few: dict[str, Any] = {"iterations": 1, "real_batch": 4, "training_steps": 2}
    made = []
    for weight in (0.0, 10.0):
        method = ImprovedMatching(ImprovedMatchingParams(**few, entropy_weight=weight), problem)
        loss = method.step(0)["loss"]
        made.append((loss, method.result().images))

    assert made[0][0] == made[1][0]
    assert torch.equal(made[0][1], made[1][1])
    assert 0 < sum(float(member.accuracy) for member in method._queue) < 1


def test_drawn_labels_are_those_of_the_images(problem: Problem) -> None:
    real = RealImages(problem.dataset, problem.device)

    numbers, labels = real.draw_any(50, generator(0, "any"))

    for number, label in zip(numbers, labels, strict=True):
        assert number in real.of_class(int(label))
    assert len(set(labels.tolist())) > 5
