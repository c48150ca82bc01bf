"""The trajectory core against unrolled autograd, its truncation against its own formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.testing import assert_close

from benchmarks import naive_distillation as naive
from overproof.core.spec import PluginRef
from overproof.errors import InvalidSpec, MalformedArtifact
from overproof.ml.augment import dsa
from overproof.ml.distill.trajectory import FlatNetwork, InnerStep, Lesson, match
from overproof.ml.models.base import Network, build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.experts import Experts, write_trajectory

FAMILIES = ("color", "crop", "cutout", "flip", "scale", "rotate")
IMAGES = 6
CLASSES = 3
RATE = 0.05
BETA = torch.tensor(RATE, dtype=torch.float64)


@pytest.fixture
def network() -> Network:
    # A smooth activation: with kinks the gradients of two orders of computation could differ.
    facts = ImageFacts(channels=1, size=(8, 8), classes=CLASSES, mean=(0.5,), std=(0.25,))
    ref = PluginRef(name="convnet", params={"width": 4, "depth": 2, "activation": "swish"})
    return build(ref, facts, 0).double().network


def a_case(
    network: Network, inner_steps: int, *, soft: bool
) -> tuple[Lesson, list[InnerStep], Tensor, Tensor]:
    """Images, the student's steps, the start and the goal; all in float64."""
    stream = generator(5, "case", inner_steps)
    images = torch.randn(IMAGES, 1, 8, 8, generator=stream, dtype=torch.float64)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES // CLASSES)
    if soft:
        labels = torch.randn(IMAGES, CLASSES, generator=stream, dtype=torch.float64)
    steps = []
    for _ in range(inner_steps):
        rows = torch.randperm(IMAGES, generator=stream)[:4]
        steps.append(InnerStep(rows, dsa.draw(FAMILIES, stream, 4, siamese=False)))
    start = torch.cat([each.detach().flatten() for each in network.parameters()])
    goal = start + 0.05 * torch.randn(len(start), generator=stream, dtype=torch.float64)
    return Lesson(images, labels, learns_labels=soft), steps, start, goal


def step_gradient(
    network: Network, flat: Tensor, lesson: Lesson, step: InnerStep, *, keeps_graph: bool
) -> Tensor:
    """The student's gradient, from named parameters and with the cross entropy written out."""
    named, used = {}, 0
    for name, parameter in network.named_parameters():
        named[name] = flat[used : used + parameter.numel()].view(parameter.shape)
        used += parameter.numel()
    logits = functional_call(network, named, (dsa.apply(lesson.images[step.rows], step.drawn),))
    y = lesson.labels[step.rows]
    weights = y.softmax(1) if lesson.learns_labels else functional.one_hot(y, CLASSES).double()
    loss = -(weights * logits.log_softmax(1)).sum(1).mean()
    return torch.autograd.grad(loss, flat, create_graph=keeps_graph)[0]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("inner_steps", [1, 5])
def test_recursion_equals_autograd_through_all_steps(
    network: Network, inner_steps: int, soft: bool
) -> None:
    lesson, steps, start, goal = a_case(network, inner_steps, soft=soft)
    ours = match(FlatNetwork(network), lesson, steps, start=start, goal=goal, rate=BETA)

    images = lesson.images.clone().requires_grad_(True)
    labels = lesson.labels.clone().requires_grad_(soft)
    rate = BETA.clone().requires_grad_(True)
    flat = start.clone().requires_grad_(True)
    for step in steps:
        unrolled = replace(lesson, images=images, labels=labels)
        gradient = step_gradient(network, flat, unrolled, step, keeps_graph=True)
        flat = flat - rate * gradient
    loss = (flat - goal).square().sum() / (start - goal).square().sum()
    expected = torch.autograd.grad(loss, [images, rate, *([labels] if soft else [])])

    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-9)
    assert relative_error(ours.images, expected[0]) < 1e-9
    assert relative_error(ours.rate, expected[1]) < 1e-9
    if soft:
        assert ours.labels is not None
        assert relative_error(ours.labels, expected[2]) < 1e-9
    else:
        assert ours.labels is None


def test_recursion_equals_the_published_loop_beside_which_speed_is_measured(
    network: Network,
) -> None:
    lesson, steps, start, goal = a_case(network, 3, soft=False)
    steps = [replace(step, drawn=dsa.draw((), generator(0), 4, siamese=False)) for step in steps]

    ours = match(FlatNetwork(network), lesson, steps, start=start, goal=goal, rate=BETA)
    by_images, by_rate, loss = naive.trajectory_matching(
        network.requires_grad_(True),
        lesson.images,
        lesson.labels,
        [step.rows for step in steps],
        start=start,
        goal=goal,
        rate=BETA,
    )

    assert_close((ours.images, ours.rate, ours.loss), (by_images, by_rate, loss))


def test_truncation_follows_its_published_formula(network: Network) -> None:
    lesson, steps, start, goal = a_case(network, 4, soft=False)
    rate = BETA
    ours = match(
        FlatNetwork(network), lesson, steps, start=start, goal=goal, rate=rate, exact=False
    )

    # G is the sum of the student's gradients, v = 2 (β (φ* - φ₀) + β² G) / |φ₀ - φ*|².
    path, total = [start], torch.zeros_like(start)
    for step in steps:
        flat = path[-1].clone().requires_grad_(True)
        gradient = step_gradient(network, flat, lesson, step, keeps_graph=False)
        total += gradient
        path.append(path[-1] - RATE * gradient)
    scale = (start - goal).square().sum()
    v = 2 * (RATE * (goal - start) + RATE**2 * total) / scale
    expected = torch.zeros_like(lesson.images)
    for step, before in zip(steps, path, strict=False):
        images = lesson.images.clone().requires_grad_(True)
        flat = before.clone().requires_grad_(True)
        part = step_gradient(network, flat, replace(lesson, images=images), step, keeps_graph=True)
        expected += torch.autograd.grad(v @ part, images)[0]

    assert relative_error(ours.images, expected) < 1e-9
    assert ours.rate.item() == pytest.approx(
        float(-2 * (start - RATE * total - goal) @ total / scale), rel=1e-5
    )


def test_truncation_is_exact_for_one_step_and_not_for_more(network: Network) -> None:
    errors = []
    for inner_steps in (1, 6):
        lesson, steps, start, goal = a_case(network, inner_steps, soft=False)
        exact, truncated = (
            match(
                FlatNetwork(network),
                lesson,
                steps,
                start=start,
                goal=goal,
                rate=BETA,
                exact=is_exact,
            )
            for is_exact in (True, False)
        )
        assert exact.loss == truncated.loss
        errors.append(relative_error(truncated.images, exact.images))

    assert errors[0] == 0
    assert 1e-4 < errors[1] < 1


def test_student_that_stands_still_has_loss_one(network: Network) -> None:
    lesson, steps, start, goal = a_case(network, 3, soft=False)

    made = match(
        FlatNetwork(network), lesson, steps, start=start, goal=goal, rate=torch.tensor(0.0)
    )

    assert made.loss.item() == 1
    assert made.images.abs().max() == 0


# ---- files -----------------------------------------------------------------------------------


def a_trajectory(path: Path, epochs: int = 3, parameters: int = 7) -> Tensor:
    trajectory = torch.rand(epochs + 1, parameters, generator=generator(0, "trajectory"))
    write_trajectory(trajectory, path)
    return trajectory


def test_snapshots_are_read_one_by_one(tmp_path: Path) -> None:
    long = a_trajectory(tmp_path / "long", epochs=5)
    short = a_trajectory(tmp_path / "short")

    experts = Experts(
        [tmp_path / "long", tmp_path / "short"], parameters=7, device=torch.device("cpu")
    )

    assert (len(experts), experts.epochs) == (2, 3)
    assert torch.equal(experts.snapshot(0, 5), long[5])
    assert torch.equal(experts.snapshot(1, 2), short[2])


def test_unusable_trajectories_are_refused(tmp_path: Path) -> None:
    a_trajectory(tmp_path / "other", parameters=8)
    a_trajectory(tmp_path / "whole")
    (tmp_path / "truncated").write_bytes((tmp_path / "whole").read_bytes()[:-4])

    for name, message in (
        ("other", "a network of 7 parameters needs"),
        ("truncated", "truncated is not the trajectory of an expert"),
        ("missing", "missing is not the trajectory of an expert"),
    ):
        with pytest.raises(MalformedArtifact, match=message):
            Experts([tmp_path / name], parameters=7, device=torch.device("cpu"))
    with pytest.raises(InvalidSpec, match="follows experts"):
        Experts([], parameters=7, device=torch.device("cpu"))
