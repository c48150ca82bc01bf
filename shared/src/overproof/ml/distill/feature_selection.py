"""Selections that look at images through a network trained on the whole set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from overproof.catalog.distillation import FeatureParams
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.models.base import Normalized
from overproof.ml.train.loop import Training
from overproof.ml.train.means import choose_means
from overproof.ml.train.recipe import Recipe

P = TypeVar("P", bound=FeatureParams)


class FeatureSelection(DistillationMethod[P]):
    """Train a network on the whole set, one step an epoch, then choose by its features.

    Features are the input of the last layer and are not scaled to length one.
    """

    def __init__(self, params: P, problem: Problem) -> None:
        super().__init__(params, problem)
        dataset = problem.dataset
        model = problem.build("network")
        means, _ = choose_means(
            model.network,
            dataset.facts,
            device=problem.device,
            images=len(dataset.train_images),
            epochs=params.epochs,
        )
        self._training = Training(
            [model],
            [problem.seed],
            dataset.train_images,
            dataset.train_labels,
            Recipe(
                epochs=params.epochs,
                learning_rate=params.learning_rate,
                momentum=0.9,
                weight_decay=5e-4,
                batch_size=params.batch_size,
            ),
            means=means,
            device=problem.device,
        )

    @property
    def total_steps(self) -> int:
        """Epochs of the network."""
        return self._training.total_steps

    def step(self, index: int) -> Mapping[str, float]:
        """One epoch."""
        scalars = self._training.step(index)
        self.loss = scalars.get("loss", self.loss)
        return scalars

    def result(self) -> DistilledSet:
        """The chosen images, of each class in the order in which they were chosen."""
        problem = self.problem
        real = RealImages(problem.dataset, problem.device)
        real.require(problem.images_per_class)
        (model,) = self._training.networks()
        model.eval()
        chosen = []
        for label in range(problem.dataset.classes):
            features = features_of(model, real, label, problem.rows_at_once)
            chosen.append(real.of_class(label)[self.choose(features, label).cpu()])
        return DistilledSet(
            images=real.pixels(torch.cat(chosen)).cpu(),
            labels=labels_of(problem.dataset.classes, problem.images_per_class),
        )

    def state(self) -> dict[str, Tensor]:
        """That of the training."""
        return self._training.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._training.load_state(state)

    @abstractmethod
    def choose(self, features: Tensor, label: int) -> Tensor:
        """Which images of one class are taken.

        Args:
            features: (M, D) float32 on the device, M at least `images_per_class`.
            label: the class.

        Returns:
            (images_per_class,) int64 different rows of `features`.
        """


@torch.no_grad()
def features_of(model: Normalized, real: RealImages, label: int, rows_at_once: int) -> Tensor:
    """(M, D) float32 features of all images of one class, in the order of `real.of_class`."""
    return torch.cat(
        [
            model.embed(real.pixels(numbers))
            for numbers in torch.split(real.of_class(label), rows_at_once)
        ]
    )
