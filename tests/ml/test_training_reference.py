"""Training against a plain program with torch's optimizer, and what no network may depend on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.catalog.protocols import PROTOCOLS, DsaProtocolParams, ProtocolParams
from overproof.core.spec import PluginRef
from overproof.errors import NonFiniteLoss, ShapeError
from overproof.ml.augment import dsa
from overproof.ml.datasets.base import Dataset
from overproof.ml.models.base import Normalized, build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.evaluation import pixels_of, predictions_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means, choose_means, multiplications
from overproof.ml.train.protocols import hard_label
from overproof.ml.train.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = hard_label(
    ProtocolParams(epochs=4, learning_rate=0.05, batch_size=32, strategy="color_crop"),
    mirrors=False,
)


def a_training(
    digits: Dataset,
    seeds: Sequence[int] = (0,),
    recipe: Recipe = RECIPE,
    means: Means = Means.EAGER,
    norm: str = "instance",
) -> Training:
    network = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": norm})
    return Training(
        [build(network, digits.facts, seed) for seed in seeds],
        seeds,
        digits.train_images[::5],
        digits.train_labels[::5],
        recipe,
        means=means,
        device=CPU,
    )


def run(training: Training, first: int = 0) -> list[dict[str, Tensor]]:
    for epoch in range(first, training.total_steps):
        training.step(epoch)
    return [network.state_dict() for network in training.networks()]


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], **tolerance: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name], b[name], **tolerance), name


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_training_equals_a_plain_program(digits: Dataset, norm: str) -> None:
    (trained,) = run(a_training(digits, [7], norm=norm))

    # The reference: E + 1 epochs, a new optimizer with a tenth of the rate after epoch E // 2 + 1.
    ref = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": norm})
    model = build(ref, digits.facts, 7).train()
    images = model.normalize(digits.train_images[::5].float() / 255)
    labels = digits.train_labels[::5]
    rate = 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for epoch in range(4 + 1):
        order = torch.randperm(len(images), generator=generator(7, "order", epoch))
        stream = generator(7, "augmentation", epoch)
        for start in range(0, len(images), 32):
            rows = order[start : start + 32]
            drawn = dsa.draw(("color", "crop"), stream, len(rows), siamese=False)
            optimizer.zero_grad()
            logits = model.network(dsa.apply(images[rows], drawn))
            functional.cross_entropy(logits, labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if epoch == 4 // 2 + 1:
            rate *= 0.1
            optimizer = torch.optim.SGD(
                model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4
            )
    assert_close(trained, model.state_dict(), atol=1e-6)


def test_first_step_of_a_linear_network_is_known() -> None:
    # Zero weights, one image of class 0: the gradient is (softmax - onehot) times the image.
    class Zero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2, bias=False)
            nn.init.zeros_(self.layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.flatten(1))
            return out

    facts = ImageFacts(channels=1, size=(2, 2), classes=2, mean=(0.5,), std=(0.25,))
    model = Normalized(Zero(), facts)  # type: ignore[arg-type]
    image = torch.tensor([[[[0.0, 0.5], [0.75, 1.0]]]])
    recipe = replace(RECIPE, epochs=1, augmentation=Augmentation(), learning_rate=0.1)

    training = Training(
        [model], [0], image, torch.tensor([0]), recipe, means=Means.EAGER, device=CPU
    )
    scalars = training.step(0)

    normalised = torch.tensor([-2.0, 0.0, 1.0, 2.0])
    weight = training.networks()[0].state_dict()["network.layer.weight"]
    assert torch.allclose(weight, 0.1 * 0.5 * torch.stack([normalised, -normalised]))
    assert scalars["loss"] == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_network_does_not_depend_on_those_beside_it(digits: Dataset, norm: str) -> None:
    together = run(a_training(digits, [3, 1, 2], norm=norm))

    (alone,) = run(a_training(digits, [1], norm=norm))

    assert_equal(together[1], alone)
    assert any(not torch.equal(together[0][name], alone[name]) for name in alone)


def test_stacked_networks_become_what_eager_ones_do(digits: Dataset) -> None:
    eager = run(a_training(digits, [0, 1, 2]))

    stacked = run(a_training(digits, [0, 1, 2], means=Means.STACKED))

    for one, other in zip(eager, stacked, strict=True):
        assert_close(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("means", "norm"),
    [(Means.EAGER, "instance"), (Means.EAGER, "batch"), (Means.STACKED, "instance")],
)
def test_training_resumed_after_every_epoch_equals_the_straight_run(
    digits: Dataset, means: Means, norm: str
) -> None:
    straight = run(a_training(digits, [0, 1], means=means, norm=norm))
    resumed = a_training(digits, [0, 1], means=means, norm=norm)

    for epoch in range(resumed.total_steps):
        state = resumed.state()
        resumed = a_training(digits, [0, 1], means=means, norm=norm)
        resumed.load_state(state)
        resumed.step(epoch)

    for one, other in zip(straight, resumed.networks(), strict=True):
        assert_equal(one, other.state_dict())


def test_state_is_a_copy(digits: Dataset) -> None:
    training = a_training(digits)
    training.step(0)
    state = training.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}

    training.step(1)

    assert_equal(state, kept)


def test_training_learns(digits: Dataset) -> None:
    recipe = replace(RECIPE, epochs=25, milestones=(20,), augmentation=Augmentation())
    training = a_training(digits, recipe=recipe)

    losses = [training.step(epoch)["loss"] for epoch in range(25)]

    assert losses[-1] < 0.6 * losses[0]
    assert training.losses == (losses[-1],)


def test_divergence_names_seed_and_epoch(digits: Dataset) -> None:
    training = a_training(digits, [5], recipe=replace(RECIPE, learning_rate=1e30))

    with pytest.raises(NonFiniteLoss, match=r"seed 5 is not finite in epoch [01]"):
        run(training)


def test_numbers_that_do_not_fit_are_refused(digits: Dataset) -> None:
    with pytest.raises(ShapeError, match="0 networks"):
        Training(
            [], [], digits.train_images, digits.train_labels, RECIPE, means=Means.EAGER, device=CPU
        )
    with pytest.raises(ShapeError, match="labels"):
        Training(
            [build(PluginRef(name="convnet", params={"depth": 1}), digits.facts, 0)],
            [0],
            digits.train_images,
            digits.train_labels[:-1],
            RECIPE,
            means=Means.EAGER,
            device=CPU,
        )


# ---- protocols, means, evaluation --------------------------------------------------------------


def test_every_protocol_of_the_catalog_gives_a_recipe() -> None:
    for name in PROTOCOLS.names():
        recipe = PROTOCOLS.load(name)(PROTOCOLS.resolve(PluginRef(name=name)), mirrors=True)

        assert recipe.epochs > 0
        assert all(0 < milestone < recipe.epochs for milestone in recipe.milestones)


def test_rate_drops_where_the_reference_makes_a_new_optimizer() -> None:
    recipe = hard_label(ProtocolParams(epochs=300), mirrors=True)

    assert recipe.epochs == 301
    assert [recipe.learning_rate_at(epoch) for epoch in (0, 151)] == [0.01, 0.01]
    assert [recipe.learning_rate_at(epoch) for epoch in (152, 300)] == pytest.approx([1e-3, 1e-3])


def test_digits_are_not_mirrored() -> None:
    assert "flip" in hard_label(DsaProtocolParams(), mirrors=True).augmentation.families
    assert "flip" not in hard_label(DsaProtocolParams(), mirrors=False).augmentation.families


def test_multiplications_are_counted_by_hand(digits: Dataset) -> None:
    network = build(PluginRef(name="convnet", params={"width": 4, "depth": 2}), digits.facts, 0)

    # 8 × 8 pixels by 4 filters of 9, then 4 × 4 by 4 filters of 36, then 10 rows of 16.
    assert multiplications(network.network, digits.facts) == 64 * 4 * 9 + 16 * 4 * 36 + 10 * 16
    assert network.network.training


def test_means_follow_from_device_and_work(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(norm: str, device: str, epochs: int) -> Means:
        ref = PluginRef(name="convnet", params={"width": 4, "depth": 2, "norm": norm})
        network = build(ref, digits.facts, 0).network
        return choose_means(
            network, digits.facts, device=torch.device(device), images=100, epochs=epochs
        )[0]

    assert chosen("batch", "cuda", 10**9) is Means.EAGER
    assert chosen("instance", "cuda", 1) is Means.STACKED
    assert chosen("instance", "cpu", 300) is Means.EAGER
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert chosen("instance", "cpu", 10**9) is Means.COMPILED
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert chosen("instance", "cpu", 10**9) is Means.EAGER


def test_predictions_are_those_of_eval_mode_whatever_the_batch(digits: Dataset) -> None:
    network = PluginRef(name="convnet", params={"width": 4, "depth": 1, "norm": "batch"})
    model = build(network, digits.facts, 0)

    predictions = predictions_of(model, digits.test_images, device=CPU, rows_at_once=7)

    assert model.training
    model.eval()
    assert torch.equal(predictions, model(pixels_of(digits.test_images)).argmax(dim=1))


def test_predictions_of_a_diverged_network_are_an_error(digits: Dataset) -> None:
    model = build(PluginRef(name="convnet", params={"width": 4, "depth": 1}), digits.facts, 0)
    nn.init.constant_(model.network.classifier.bias, torch.nan)  # type: ignore[union-attr, arg-type]

    with pytest.raises(NonFiniteLoss, match="not finite"):
        predictions_of(model, digits.test_images, device=CPU, rows_at_once=64)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiled_networks_become_what_eager_ones_do(digits: Dataset) -> None:
    recipe = replace(RECIPE, epochs=2, batch_size=40)
    eager = run(a_training(digits, [0, 1], recipe=recipe))

    compiled = run(a_training(digits, [0, 1], recipe=recipe, means=Means.COMPILED))

    for one, other in zip(eager, compiled, strict=True):
        assert_close(one, other, atol=1e-5)
