"""The forms in which cores compute agree, and which one is taken follows from what is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from benchmarks import naive_distillation as naive
from overproof.catalog.distillation import GradientMatchingParams
from overproof.core.spec import PluginRef
from overproof.ml.distill.base import Problem
from overproof.ml.distill.distances import layerwise_cosine, squared
from overproof.ml.distill.distribution_matching import matching_gradient
from overproof.ml.distill.gradient_core import GradientCore, quickest
from overproof.ml.distill.gradient_matching import GradientMatching
from overproof.ml.distill.passes import RealPasses
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import Means, multiplications, rows_near_caches

WEIGHTS = ["features.0.weight", "features.4.weight", "classifier.weight"]
LABELS = torch.tensor([3, 7])
LONG = 10**12  # images of a run that pays for compiling


@pytest.fixture
def network(problem: Problem) -> Network:
    return problem.build("network").network


@pytest.fixture
def images() -> Tensor:
    """Seven images of each of two classes."""
    return torch.randn(2, 7, 1, 8, 8, generator=generator(0, "images"))


def naive_features(network: Network, x: Tensor) -> Tensor:
    return torch.stack(
        [torch.stack([network.embed(image[None])[0] for image in of]).mean(0) for of in x]
    ).detach()


def naive_gradients(network: Network, x: Tensor) -> list[Tensor]:
    parameters = dict(network.named_parameters())
    by_class = [
        torch.autograd.grad(
            functional.cross_entropy(network(of), torch.full((len(of),), int(label))),
            [parameters[name] for name in WEIGHTS],
        )
        for of, label in zip(x, LABELS, strict=True)
    ]
    return [torch.stack(each) for each in zip(*by_class, strict=True)]


@pytest.mark.parametrize("rows", [1, 3, 7, None])
def test_pieces_of_real_images_give_what_all_at_once_give(
    rows: int | None, problem: Problem, network: Network, images: Tensor
) -> None:
    features = RealPasses(problem, network, images=1)
    gradients = RealPasses(problem, network, images=1, names=WEIGHTS)
    features._rows = gradients._rows = rows

    assert_close(features.mean_features(network, images), naive_features(network, images))
    assert_close(
        gradients.mean_gradients(network, images, LABELS), naive_gradients(network, images)
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiled_passes_give_what_eager_ones_give_for_any_network(
    problem: Problem, images: Tensor
) -> None:
    # Whole pieces only: each shape is compiled for itself.
    gradients = RealPasses(problem, problem.build("one").network, images=LONG, names=WEIGHTS)
    gradients._rows = 7

    assert gradients.means is Means.COMPILED
    for name in ("one", "another"):
        network = problem.build(name).network
        assert_close(
            gradients.mean_gradients(network, images, LABELS),
            naive_gradients(network, images),
            atol=1e-5,
            rtol=1e-4,
        )


def test_short_work_and_batch_statistics_are_not_compiled(
    problem: Problem, network: Network
) -> None:
    with_batch_norm = replace(
        problem,
        network=PluginRef(name="convnet", params={"width": 4, "depth": 1, "norm": "batch"}),
    )
    short = RealPasses(problem, network, images=1)
    together = RealPasses(with_batch_norm, with_batch_norm.build().network, images=LONG)

    assert (short.means, together.means) == (Means.EAGER, Means.EAGER)
    assert "longer than it saves" in short.reason
    assert together.reason == "batch statistics"


def test_missing_compiler_leaves_passes_eager(
    problem: Problem, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)

    assert RealPasses(problem, network, images=LONG).means is Means.EAGER


def test_pieces_and_work_of_a_small_network_are_counted_by_hand(
    problem: Problem, network: Network
) -> None:
    # Two blocks of width 4 on 8 × 8 and 4 × 4 pixels, a last layer of 16 by 10.
    first, second, last = 4 * 64 * 9, 4 * 16 * 36, 10 * 16

    facts = problem.dataset.facts

    assert multiplications(network, facts) == first + second + last
    assert rows_near_caches(network, facts) == 2**21 // (4 * 64)


def test_quickest_form_is_the_one_of_the_shorter_second_call() -> None:
    clock = iter([0.0, 5.0, 10.0, 12.0])
    calls: list[int] = []

    chosen = quickest([1, 8], calls.append, wait=lambda: None, now=lambda: next(clock))

    assert chosen == 8
    assert calls == [1, 1, 8, 8]


def test_equal_forms_give_the_first() -> None:
    clock = iter([0.0, 1.0, 1.0, 2.0])

    assert quickest([1, 8], lambda form: None, wait=lambda: None, now=lambda: next(clock)) == 1


def a_core(problem: Problem, **over: Any) -> GradientCore:
    sizes: dict[str, Any] = {"real_batch": 7, "synthetic_batch": 2, "steps": 1} | over
    return GradientCore(problem, problem.build().network, WEIGHTS, squared, **sizes)


def test_no_clock_decides_on_a_cpu(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> int:
        raise AssertionError("measured")

    monkeypatch.setattr("overproof.ml.distill.gradient_core.quickest", never)
    method = GradientMatching(
        GradientMatchingParams(iterations=1, outer_loop=1, real_batch=4), problem
    )

    method.step(0)

    assert method.notes()["classes_at_once"] == 1


def test_elsewhere_the_quicker_form_is_kept_and_travels_with_the_state(
    problem: Problem, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[int]] = []

    def second_one(forms: list[int], run: Any, **_: object) -> int:
        measured.append(forms)
        assert_close(run(forms[0]), run(forms[1]), atol=1e-5, rtol=1e-4)
        return forms[1]

    monkeypatch.setattr("overproof.ml.distill.gradient_core.quickest", second_one)
    first, second = a_core(problem), a_core(problem)
    first.classes_at_once = second.classes_at_once = None
    network = problem.build("network").network
    values = images[:, :2].clone()

    def batches(leaf: Tensor, group: slice) -> tuple[Tensor, Tensor]:
        return images[group], leaf

    assert first.state() == {}
    made = [first.gradient(network, values, batches) for _ in range(2)]
    second.load_state(first.state())
    resumed = second.gradient(network, values, batches)

    assert measured == [[1, 512 // 9]]
    assert first.notes()["classes_at_once"] == 512 // 9
    assert torch.equal(made[1][0], resumed[0])


# ---- the published loops, beside which speed is measured -----------------------------------------


def test_gradient_core_moves_images_as_the_published_loop(problem: Problem, images: Tensor) -> None:
    network = problem.build("network").network
    core = GradientCore(
        problem,
        network,
        WEIGHTS,
        layerwise_cosine,
        real_batch=7,
        synthetic_batch=2,
        steps=1,
    )

    ours = core.gradient(network, images[:, :2], lambda leaf, group: (images[group], leaf))

    theirs = naive.gradient_matching(network, images, images[:, :2])
    assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("weight", [None, 0.5])
def test_feature_core_moves_images_as_the_published_loop(
    weight: float | None, problem: Problem, network: Network, images: Tensor
) -> None:
    network.requires_grad_(False)

    ours = matching_gradient(
        network,
        images[:, :2],
        lambda leaf, group: (images[group], leaf),
        RealPasses(problem, network, images=1),
        classes_at_once=2,
        entropy_weight=None if weight is None else torch.tensor(weight),
    )

    theirs = naive.distribution_matching(network, images, images[:, :2], weight)
    assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
