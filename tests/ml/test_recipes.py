"""Parts of recipes by hand and against torch: schedules, losses, mixing, AdamW."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from overproof.core.spec import PluginRef
from overproof.errors import ShapeError
from overproof.ml.augment.mixup import mixup
from overproof.ml.datasets.base import Dataset
from overproof.ml.models.base import build
from overproof.ml.seeding import generator
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.losses import Loss, one_hot
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe

CPU = torch.device("cpu")
NETWORK = PluginRef(name="convnet", params={"width": 4, "depth": 2})
ADAMW = Recipe(
    epochs=3,
    optimizer="adamw",
    learning_rate=0.01,
    momentum=0.0,
    weight_decay=0.1,
    batch_size=50,
    cosine=0.5,
    augmentation=Augmentation(("crop",), cutmix=0.5, mixup=0.8),
)


def a_training(digits: Dataset, recipe: Recipe, means: Means = Means.EAGER) -> Training:
    return Training(
        [build(NETWORK, digits.facts, seed) for seed in (3, 4)],
        (3, 4),
        digits.train_images[::10],
        one_hot(digits.train_labels[::10], 10),
        recipe,
        means=means,
        device=CPU,
    )


def run(training: Training, first: int = 0) -> list[dict[str, torch.Tensor]]:
    for epoch in range(first, training.total_steps):
        training.step(epoch)
    return [network.state_dict() for network in training.networks()]


def test_rates_of_schedules_by_hand() -> None:
    steps = replace(ADAMW, epochs=6, cosine=0.0, milestones=(2, 4), decay=0.2)
    whole = replace(ADAMW, epochs=4, cosine=1.0)
    half = replace(ADAMW, epochs=4, cosine=0.5)

    assert [steps.learning_rate_at(e) for e in range(6)] == pytest.approx(
        [0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004]
    )
    assert [whole.learning_rate_at(e) for e in (0, 2, 4)] == pytest.approx([0.01, 0.005, 0.0])
    # ½ (1 + cos(π / 4)) at the middle, one half at the end
    assert [half.learning_rate_at(e) for e in (2, 4)] == pytest.approx(
        [0.01 * (1 + math.sqrt(0.5)) / 2, 0.005]
    )


def test_adamw_equals_a_plain_program(digits: Dataset) -> None:
    recipe = replace(ADAMW, augmentation=Augmentation(), shuffled=False)
    trained = run(a_training(digits, recipe))[0]

    model = build(NETWORK, digits.facts, 3).train()
    images = model.normalize(pixels_of(digits.train_images[::10]))
    labels = digits.train_labels[::10]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * epoch / 6))
        for start in range(0, len(images), 50):
            optimizer.zero_grad()
            loss = functional.cross_entropy(
                model.network(images[start : start + 50]), labels[start : start + 50]
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    for name, tensor in model.state_dict().items():
        assert torch.allclose(trained[name], tensor, atol=1e-6), name


@pytest.mark.parametrize("means", [Means.EAGER, Means.STACKED])
def test_adamw_with_mixing_resumes_to_the_same_networks(digits: Dataset, means: Means) -> None:
    straight = run(a_training(digits, ADAMW, means))
    stopped = a_training(digits, ADAMW, means)
    stopped.step(0)
    resumed = a_training(digits, ADAMW, means)
    resumed.load_state(stopped.state())

    for one, other in zip(straight, run(resumed, first=1), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_stacked_adamw_becomes_what_eager_does(digits: Dataset) -> None:
    # By their logits: biases before a normalisation have gradients of rounding noise alone, which
    # Adam blows up to whole steps that no output feels.
    eager, stacked = a_training(digits, ADAMW), a_training(digits, ADAMW, Means.STACKED)
    run(eager)
    run(stacked)
    images = pixels_of(digits.test_images[:50])

    for one, other in zip(eager.networks(), stacked.networks(), strict=True):
        assert torch.allclose(one(images), other(images), atol=2e-3)


def test_classes_cannot_be_mixed(digits: Dataset) -> None:
    with pytest.raises(ShapeError, match="as probabilities"):
        Training(
            [build(NETWORK, digits.facts, 0)],
            [0],
            digits.train_images,
            digits.train_labels,
            ADAMW,
            means=Means.EAGER,
            device=CPU,
        )


# ---- losses ------------------------------------------------------------------------------------

LOGITS = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
TEACHER = torch.tensor([[2.0, 1.0, 0.0], [0.0, 4.0, 0.0]])
CLASSES = torch.tensor([0, 2])


def test_cross_entropy_of_soft_labels_is_the_sum_over_classes() -> None:
    loss = Loss(temperature=2.0, scaled=True)
    targets = loss.targets(CLASSES, TEACHER)

    p, q = (TEACHER / 2).softmax(1), (LOGITS / 2).softmax(1)
    assert float(loss(LOGITS, targets)) == pytest.approx(4 * float(-(p * q.log()).sum(1).mean()))


@pytest.mark.parametrize("scaled", [False, True])
def test_kl_is_the_divergence_of_softened_outputs(scaled: bool) -> None:
    loss = Loss("kl", temperature=4.0, scaled=scaled)
    targets = loss.targets(CLASSES, TEACHER)

    p, q = (TEACHER / 4).softmax(1), (LOGITS / 4).softmax(1)
    divergence = float((p * (p / q).log()).sum(1).mean())
    assert float(loss(LOGITS, targets)) == pytest.approx(divergence * (16 if scaled else 1))
    assert float(loss(TEACHER, targets)) == pytest.approx(0.0, abs=1e-6)


def test_mse_adds_the_cross_entropy_with_the_classes() -> None:
    loss = Loss("mse", hard_weight=0.5)

    value = loss(LOGITS, loss.targets(CLASSES, TEACHER))

    # squares 1, 4, 0, 0, 16, 4 over six entries
    hard = float(nn.CrossEntropyLoss()(LOGITS, CLASSES))
    assert float(value) == pytest.approx(25 / 6 + 0.5 * hard)


@pytest.mark.parametrize("kind", ["cross-entropy", "kl", "mse"])
def test_without_soft_labels_targets_are_the_labels(kind: str) -> None:
    loss = Loss(kind)  # type: ignore[arg-type]

    assert loss.targets(CLASSES, None) is CLASSES


# ---- mixing ------------------------------------------------------------------------------------


def test_mixup_mixes_images_and_targets_by_one_share() -> None:
    x = torch.arange(6.0).view(6, 1, 1, 1)
    targets = torch.eye(6)

    mixed, soft = mixup(x, targets, 0.8, generator(0, "mix"))

    # every mixed image is the expectation of the image numbers under its mixed label
    assert torch.allclose(mixed.flatten(), soft @ torch.arange(6.0), atol=1e-5)
    assert torch.allclose(soft.sum(1), torch.ones(6))
    assert not torch.equal(soft, targets)


def test_shares_of_mixup_follow_their_distribution() -> None:
    x, targets = torch.zeros(2, 1, 1, 1), torch.eye(2)
    # Beta(α, α) has mean ½ and variance 1 / (4 (2 α + 1)); the share of the first image itself
    shares = []
    for seed in range(400):
        _, soft = mixup(x, targets, 2.0, generator(seed, "mix"))
        if float(soft[0, 0]) < 1.0:
            shares.append(float(soft[0, 0]))

    sample = torch.tensor(shares)
    assert float(sample.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(sample.var()) == pytest.approx(1 / 20, abs=0.015)


def test_mixing_and_composing_depend_on_the_stream_alone() -> None:
    x, targets = torch.rand(8, 1, 8, 8, generator=generator(0, "x")), torch.eye(8)
    augmentation = Augmentation(("crop", "scale"), composed=True, cutmix=1.0)

    first, second = (augmentation(x, targets, generator(1, "stream")) for _ in range(2))
    other = augmentation(x, targets, generator(2, "stream"))

    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])
