"""Herding: the images whose running mean of features follows the mean of their class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.distillation import HerdingParams
from overproof.errors import ShapeError
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import choose_means
from overproof.ml.train.protocols import Recipe


class Herding(DistillationMethod[HerdingParams]):
    """Train a network on the whole set, one step an epoch, then choose by its features.

    Source: Welling 2009; arXiv:1611.07725 (iCaRL), algorithm 4. Differs: features are the input of
    the last layer and are not scaled to length one.
    """

    def __init__(self, params: HerdingParams, problem: Problem) -> None:
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
                drop_at=params.epochs,
                learning_rate=params.learning_rate,
                momentum=0.9,
                weight_decay=5e-4,
                batch_size=params.batch_size,
                families=(),
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
            numbers = real.of_class(label)
            with torch.no_grad():
                features = torch.cat(
                    [
                        model.embed(real.pixels(part)).cpu()
                        for part in torch.split(numbers, problem.rows_at_once)
                    ]
                )
            chosen.append(numbers[herd(features, problem.images_per_class)])
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


def herd(features: Tensor, count: int) -> Tensor:
    """Greedily choose rows so that after k choices their sum is near k times the mean.

    Args:
        features: (N, D) floating point, on the CPU.
        count: how many rows, at most N; none is chosen twice. Of equals the first is chosen.

    Returns:
        (count,) int64, in the order of choice.

    Raises:
        ShapeError: there are fewer rows.
    """
    if count > len(features):
        raise ShapeError(f"{count} of {len(features)} rows cannot be chosen")
    features = features.double()
    mean = features.mean(dim=0)
    squares = features.square().sum(dim=1)
    is_free = torch.ones(len(features), dtype=torch.bool)
    rest = torch.zeros_like(mean)  # (k + 1) · mean less the sum of the k chosen
    chosen = []
    for _ in range(count):
        rest = rest + mean
        # |rest - φ|² without the term that is equal for all
        cost = squares - 2 * (features @ rest)
        best = int(torch.where(is_free, cost, torch.inf).argmin())
        chosen.append(best)
        is_free[best] = False
        rest = rest - features[best]
    return torch.tensor(chosen)
