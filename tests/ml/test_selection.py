"""Which weights are kept, which learning rate is found, and what neither may look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from overproof.catalog.protocols import PROTOCOLS, Selection
from overproof.core.spec import PluginRef
from overproof.errors import NonFiniteLoss
from overproof.ml.datasets.base import Dataset
from overproof.ml.train.assembly import Assembled, TrainingSet, assemble
from overproof.ml.train.evaluation import predictions_of
from overproof.ml.train.losses import one_hot
from overproof.ml.train.recipe import Recipe
from overproof.ml.train.search import SearchedTraining
from overproof.ml.train.selection import hold_out

CPU = torch.device("cpu")
NETWORK = PluginRef(name="convnet", params={"width": 4, "depth": 2})
RECIPE = Recipe(epochs=6, learning_rate=0.1, momentum=0.9, weight_decay=0.0, batch_size=40, looks=6)


def small(digits: Dataset) -> Dataset:
    return replace(
        digits,
        train_images=digits.train_images[:300],
        train_labels=digits.train_labels[:300],
        test_images=digits.test_images[:100],
        test_labels=digits.test_labels[:100],
    )


def a_set(data: Dataset, count: int = 60, **over: Any) -> TrainingSet:
    return TrainingSet(data.train_images[:count], data.train_labels[:count], **over)


def assembled(
    data: Dataset, recipe: Recipe = RECIPE, training_set: TrainingSet | None = None
) -> Assembled:
    return assemble(
        NETWORK,
        (0, 1),
        training_set or a_set(data),
        recipe,
        data,
        device=CPU,
        rows_at_once=64,
    )


def run(made: Assembled, first: int = 0) -> Assembled:
    for index in range(first, made.work.total_steps):
        made.work.step(index)
    return made


def correct(made: Assembled, data: Dataset) -> list[int]:
    """Right answers on the test set, counted anew."""
    answers = [
        predictions_of(network, data.test_images, device=CPU, rows_at_once=64)
        for network in made.training.networks()
    ]
    return [int((answer == data.test_labels).sum()) for answer in answers]


def test_looks_are_the_accuracies_after_their_epochs(digits: Dataset) -> None:
    data = small(digits)
    made = run(assembled(data, replace(RECIPE, looks=3)))

    assert made.training.epochs == (1, 3, 5)
    for look, epochs in enumerate((2, 4, 6)):
        shorter = run(assembled(data, replace(RECIPE, epochs=epochs, looks=1)))
        assert made.training.correct[:, look].tolist() == correct(shorter, data)


@pytest.mark.parametrize("selection", ["last", "paper"])
def test_kept_weights_are_those_of_the_chosen_look(digits: Dataset, selection: Selection) -> None:
    data = small(digits)
    made = run(assembled(data, replace(RECIPE, selection=selection, learning_rate=0.5)))

    looks = made.training.correct
    chosen = looks.argmax(dim=1).tolist() if selection == "paper" else [5, 5]
    assert made.training.chosen.tolist() == chosen
    assert correct(made, data) == [int(looks[i, look]) for i, look in enumerate(chosen)]


def test_validation_chooses_the_same_whatever_the_test_labels_are(digits: Dataset) -> None:
    data = small(digits)
    recipe = replace(RECIPE, selection="validation", rates=(0.001, 0.1))
    wrong = replace(data, test_labels=9 - data.test_labels)

    one, other = run(assembled(data, recipe)), run(assembled(wrong, recipe))

    assert not torch.equal(one.training.correct, other.training.correct)
    assert torch.equal(one.training.chosen, other.training.chosen)
    assert isinstance(one.work, SearchedTraining)
    assert isinstance(other.work, SearchedTraining)
    assert one.work.tried == other.work.tried
    for a, b in zip(one.training.networks(), other.training.networks(), strict=True):
        assert all(torch.equal(a.state_dict()[n], t) for n, t in b.state_dict().items())


def test_whole_set_is_trained_on_without_what_is_held_out(digits: Dataset) -> None:
    data = small(digits)
    whole = TrainingSet(data.train_images, data.train_labels, is_whole=True)
    recipe = replace(RECIPE, selection="validation")
    kept, held = hold_out(data.train_labels, 0.1)
    changed = data.train_images.clone()
    changed[held] = 255 - changed[held]

    one = run(assembled(data, recipe, whole))
    other = run(assembled(data, recipe, replace(whole, images=changed)))

    assert one.facts["held_out"] == len(held)
    assert torch.equal(one.training.correct, other.training.correct)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(data.train_labels)))


def test_labels_of_what_is_held_out_are_left_out_too(digits: Dataset) -> None:
    data = small(digits)
    logits = one_hot(data.train_labels, data.classes) * 5
    whole = TrainingSet(data.train_images, data.train_labels, logits, is_whole=True)
    recipe = replace(RECIPE, selection="validation")
    _, held = hold_out(data.train_labels, 0.1)
    changed = logits.clone()
    changed[held] = 0

    one = run(assembled(data, recipe, whole))
    other = run(assembled(data, recipe, replace(whole, logits=changed)))

    assert one.training.losses == other.training.losses


def test_held_out_are_a_tenth_of_every_class_and_at_least_one() -> None:
    labels = torch.tensor([0] * 40 + [1] * 3 + [2])

    kept, held = hold_out(labels, 0.1)

    assert labels[held].tolist() == [0] * 4 + [1, 2]
    assert labels[kept].tolist() == [0] * 36 + [1, 1, 2]


# ---- learning rates ------------------------------------------------------------------------------


def test_search_finds_the_rate_that_did_best_on_held_out_images(digits: Dataset) -> None:
    data = small(digits)
    made = run(assembled(data, replace(RECIPE, rates=(1e-6, 0.1, 1e20))))

    work = made.work
    assert isinstance(work, SearchedTraining)
    assert work.total_steps == 4 * 6
    assert work.rate == 0.1
    assert work.tried["0.1"] > work.tried["1e-06"] >= 0
    assert work.tried["1e+20"] == -1
    plain = run(assembled(data, replace(RECIPE, learning_rate=0.1)))
    assert correct(made, data) == correct(plain, data)


def test_search_whose_trials_all_diverge_is_an_error(digits: Dataset) -> None:
    with pytest.raises(NonFiniteLoss, match="at every learning rate of 1e"):
        run(assembled(small(digits), replace(RECIPE, rates=(1e20, 1e21))))


def test_whole_set_takes_the_rate_of_the_protocol(digits: Dataset) -> None:
    data = small(digits)
    whole = TrainingSet(data.train_images, data.train_labels, is_whole=True)

    made = assembled(data, replace(RECIPE, rates=(0.001, 0.1)), whole)

    assert not isinstance(made.work, SearchedTraining)


def test_rate_and_labels_of_a_set_count_only_where_the_protocol_wants_them(
    digits: Dataset,
) -> None:
    data = small(digits)
    logits = torch.zeros(60, 10)
    brings = a_set(data, logits=logits, learning_rate=0.05)
    recipe = replace(RECIPE, rates=(0.1,))

    own = assembled(data, recipe, brings)
    hard = run(assembled(data, replace(recipe, own_labels=False), brings))
    without = run(assembled(data, recipe))

    assert own.facts["learning_rate"] == 0.05
    assert not isinstance(own.work, SearchedTraining)
    assert correct(hard, data) == correct(without, data)
    assert correct(run(own), data) != correct(hard, data)


@pytest.mark.parametrize("stop", [2, 5, 6, 11, 14, 17])
def test_search_resumed_anywhere_ends_in_the_same_networks(digits: Dataset, stop: int) -> None:
    data = small(digits)
    recipe = replace(RECIPE, rates=(1e20, 0.1), selection="paper")
    straight = run(assembled(data, recipe))
    stopped = assembled(data, recipe)
    for index in range(stop):
        stopped.work.step(index)
    resumed = assembled(data, recipe)
    resumed.work.load_state(stopped.work.state())

    run(resumed, first=stop)

    assert torch.equal(resumed.training.correct, straight.training.correct)
    for a, b in zip(straight.training.networks(), resumed.training.networks(), strict=True):
        assert all(torch.equal(a.state_dict()[n], t) for n, t in b.state_dict().items())


# ---- protocols -----------------------------------------------------------------------------------


def recipe_of(name: str, **params: Any) -> Recipe:
    ref = PluginRef(name=name, params=params)
    recipe: Recipe = PROTOCOLS.load(name)(PROTOCOLS.resolve(ref), mirrors=True)
    return recipe


def test_protocols_choose_by_the_test_set_only_where_they_say_paper() -> None:
    for name in PROTOCOLS.names():
        params = PROTOCOLS.resolve(PluginRef(name=name)).model_dump()
        assert recipe_of(name).selection == params.get("selection", "last")

    assert recipe_of("ddr").selection == "paper"
    assert recipe_of("ddk").selection == "last"


def test_unified_protocol_by_its_paper() -> None:
    recipe = recipe_of("ddr")

    rates = [recipe.learning_rate_at(epoch) for epoch in (0, 499, 500, 999)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001])
    assert (recipe.epochs, recipe.batch_size, recipe.shuffled) == (1000, 256, False)


def test_protocol_of_idc_by_its_code() -> None:
    recipe = recipe_of("dream")

    rates = [recipe.learning_rate_at(epoch) for epoch in (665, 666, 832, 833)]
    assert rates == pytest.approx([0.01, 0.002, 0.002, 0.0004])
    assert (recipe.epochs, recipe.batch_size) == (1000, 64)
    assert set(recipe.augmentation.families) == {"color", "crop", "flip", "scale", "rotate"}
    assert (recipe.augmentation.composed, recipe.augmentation.cutmix) == (True, 0.5)


def test_ranking_protocol_by_its_code() -> None:
    recipe = recipe_of("ddk", epochs=1200)

    rates = [recipe.learning_rate_at(epoch) for epoch in (499, 500, 1000)]
    assert rates == pytest.approx([0.01, 0.001, 0.0001])
    assert recipe.rates == (0.001, 0.005, 0.01, 0.05, 0.1)
    assert not recipe.own_labels
    taught = recipe_of("ddk", labels="set", loss="kl", temperature=4.0, schedule="half-cosine")
    assert (taught.own_labels, taught.loss.kind, taught.cosine) == (True, "kl", 0.5)


@pytest.mark.parametrize("rates", ["fast", "0.1,0.2", "-1", "0.1  0.2"])
def test_rates_that_are_none_are_refused(rates: str) -> None:
    with pytest.raises(Exception, match="learning_rates"):
        recipe_of("ddk", learning_rates=rates)
