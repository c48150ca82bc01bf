"""Puts a training together: networks, a set, a recipe, and what is held out to choose by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from overproof.core.spec import PluginRef
from overproof.ml.augment.zca import Whitening
from overproof.ml.datasets.base import Dataset
from overproof.ml.models.base import build
from overproof.ml.train.loop import Training
from overproof.ml.train.losses import one_hot
from overproof.ml.train.means import choose_means
from overproof.ml.train.recipe import Recipe
from overproof.ml.train.search import SearchedTraining
from overproof.ml.train.selection import Examples, WatchedTraining, hold_out
from overproof.ml.train.soft_labels import SoftLabels

# Of every class of the training images, to choose learning rates and epochs by.
HELD_OUT = 0.1
# Of the networks that try rates; no network of an experiment has it.
_TRIAL_SEED = 2**31


@dataclass(frozen=True)
class TrainingSet:
    """What networks are trained on.

    Attributes:
        images: (N, C, H, W), uint8 or float32 pixels.
        labels: (N,) int64.
        logits: (N, K) float32 soft labels that it brings, None without.
        learning_rate: that it brings, None without.
        whitening: that it brings, None without.
        views: of its images, labelled by a teacher, in whose place they are replayed; None without.
        is_whole: whether it is the training part of the data set itself.
    """

    images: Tensor
    labels: Tensor
    logits: Tensor | None = None
    learning_rate: float | None = None
    whitening: Whitening | None = None
    views: SoftLabels | None = None
    is_whole: bool = False

    @property
    def examples(self) -> Examples:
        """Its images with their classes."""
        return Examples(self.images, self.labels)

    def taught(self, labels: Path, classes: int, *, epochs: int | None) -> TrainingSet:
        """The set with what a teacher says of it, in the place of its own soft labels.

        Args:
            labels: file of `soft_labels.LabelMaking`.
            classes: K.
            epochs: of views to replay; None for one label of each image as it is. A learning rate
                that came with the set was found without views, and is dropped for them.

        Raises:
            MalformedArtifact, ShapeError, InvalidSpec: the labels are unusable or of another set.
        """
        said = SoftLabels(labels, images=len(self.images), classes=classes, epochs=epochs or 1)
        if epochs is None:
            return replace(self, logits=said.logits(0))
        return replace(self, views=said, logits=None, learning_rate=None)


@dataclass(frozen=True)
class Assembled:
    """A training that is ready to run, and how it came about.

    Attributes:
        work: does it all; a `Resumable`.
        facts: for people: means, learning rate, examples that were held out.
    """

    work: WatchedTraining | SearchedTraining
    facts: dict[str, str | int | float]

    @property
    def training(self) -> WatchedTraining:
        """The training itself, when all steps are done."""
        training = self.work.training if isinstance(self.work, SearchedTraining) else self.work
        assert training is not None
        return training


def assemble(
    network: PluginRef,
    seeds: Sequence[int],
    training_set: TrainingSet,
    recipe: Recipe,
    dataset: Dataset,
    *,
    device: torch.device,
    rows_at_once: int,
) -> Assembled:
    """A training of one network for each seed.

    Held-out examples are a tenth of the real training images. A whole set is trained on without
    them when they choose; a distilled set was made from all of them, so that its scores on them
    are only good for choosing.

    Args:
        network: architecture.
        seeds: one a network.
        training_set: see there.
        recipe: see there; the rate of a set that brings one takes the place of its own.
        dataset: whose test images are measured and whose training images are held out.
        device: where to train.
        rows_at_once: images in one forward pass of an evaluation.
    """
    facts: dict[str, str | int | float] = {}
    brought = training_set.learning_rate if recipe.own_labels else None
    if brought is not None:
        recipe = replace(recipe, learning_rate=brought, rates=())
        facts["learning_rate"] = brought
    searches = bool(recipe.rates) and not training_set.is_whole
    validation = None
    if searches or recipe.selection == "validation":
        real = training_set.examples
        if not training_set.is_whole:
            real = Examples(dataset.train_images, dataset.train_labels)
        kept, held = hold_out(real.labels, HELD_OUT)
        validation = Examples(real.images[held], real.labels[held])
        facts["held_out"] = len(held)
        if training_set.is_whole:
            said = training_set.logits
            training_set = replace(
                training_set,
                images=real.images[kept],
                labels=real.labels[kept],
                logits=None if said is None else said[kept],
            )
    logits = training_set.logits if recipe.own_labels else None
    targets = recipe.loss.targets(training_set.labels, logits)
    if recipe.augmentation.mixes and not targets.is_floating_point():
        targets = one_hot(targets, dataset.classes)
    shown: Tensor | SoftLabels = training_set.views or targets
    images = training_set.images
    whitening = training_set.whitening
    built = [build(network, dataset.facts, seed, whitening=whitening) for seed in seeds]
    means, reason = choose_means(
        built[0].network,
        dataset.facts,
        device=device,
        images=len(images),
        epochs=recipe.epochs,
    )
    facts |= {"means": means.value, "means_reason": reason}

    def trial(rate: float) -> Training:
        model = build(network, dataset.facts, _TRIAL_SEED, whitening=whitening)
        at_rate = replace(recipe, learning_rate=rate)
        return Training([model], [_TRIAL_SEED], images, shown, at_rate, means=means, device=device)

    def watched(rate: float) -> WatchedTraining:
        at_rate = replace(recipe, learning_rate=rate)
        return WatchedTraining(
            Training(built, seeds, images, shown, at_rate, means=means, device=device),
            selection=recipe.selection,
            looks=recipe.looks,
            test=Examples(dataset.test_images, dataset.test_labels),
            validation=validation,
            device=device,
            rows_at_once=rows_at_once,
        )

    if not searches:
        return Assembled(watched(recipe.learning_rate), facts)
    assert validation is not None
    held_out = validation
    search = SearchedTraining(
        recipe.rates,
        epochs=recipe.epochs,
        trial=trial,
        judge=lambda model: held_out.correct(model, device, rows_at_once),
        make=watched,
    )
    return Assembled(search, facts)
