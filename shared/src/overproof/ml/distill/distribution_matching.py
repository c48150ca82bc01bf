"""Distribution matching (DM): class means of the features of random networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.distillation import DistributionMatchingParams
from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import SyntheticImages, augmented
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import has_batch_statistics


class DistributionMatching(DistillationMethod[DistributionMatchingParams]):
    """Match mean features of synthetic and real images under one augmentation for each class.

    The loss of a step is the sum over classes and features of the squared difference of the two
    means, under a network drawn for that step and never trained. All classes go through the
    network together; where that is more than `rows_at_once` images, in groups of whole classes,
    since without batch statistics the loss is a sum over classes.

    Args:
        params, problem: see `DistillationMethod`. Where the smallest class has fewer images than
            `real_batch`, as many as it has are drawn of every class.

    Source: arXiv:2110.04181, equation 4; VICO-UoE/DatasetCondensation, main_DM.py. Differs: real
    images of a step are different ones, not a permutation's head of each class; exactly
    `iterations` steps instead of one more.
    """

    def __init__(self, params: DistributionMatchingParams, problem: Problem) -> None:
        super().__init__(params, problem)
        dataset = problem.dataset
        self._real = RealImages(dataset, problem.device)
        self._real_batch = min(params.real_batch, self._real.smallest)
        self._families = dsa.strategy_of(params.strategy, mirrors=dataset.mirrors)
        normalizer = problem.build()
        self._normalizer = normalizer
        self._synthetic = SyntheticImages(problem, self._real, params.init, normalizer)
        rows_of_class = self._real_batch + problem.images_per_class
        self._classes_at_once = max(1, problem.rows_at_once // rows_of_class)
        if has_batch_statistics(normalizer):
            self._classes_at_once = dataset.classes

    @property
    def total_steps(self) -> int:
        """One step for each random network."""
        return self.params.iterations

    def step(self, index: int) -> Mapping[str, float]:
        """Match on the network of step `index` and move all images once."""
        problem = self.problem
        classes = problem.dataset.classes
        network = problem.build("network", index).requires_grad_(False).network
        numbers = self._real.draw(self._real_batch, generator(problem.seed, "real", index))
        drawn = dsa.draw(
            self._families, generator(problem.seed, "augmentation", index), classes, siamese=True
        )

        total = torch.zeros((), device=problem.device)
        gradient = torch.empty_like(self._synthetic.values)
        for first in range(0, classes, self._classes_at_once):
            group = slice(first, first + self._classes_at_once)
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            synthetic = self._synthetic.values[group].detach().requires_grad_(True)
            with torch.no_grad():
                target = mean_features(network, augmented(real, drawn, group))
            difference = target - mean_features(network, augmented(synthetic, drawn, group))
            loss = difference.square().sum()
            (gradient[group],) = torch.autograd.grad(loss, synthetic)
            total += loss.detach()
        self._synthetic.step(
            gradient, learning_rate=self.params.learning_rate, momentum=self.params.momentum
        )
        return self._read(index, total)

    def result(self) -> DistilledSet:
        """The images as they are now."""
        return self._synthetic.distilled()

    def state(self) -> dict[str, Tensor]:
        """Images and velocity; networks are drawn anew in every step."""
        return self._synthetic.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)


def mean_features(network: Network, x: Tensor) -> Tensor:
    """(K, n, C, H, W) normalised images → (K, D) mean features of each class."""
    classes, count = x.shape[:2]
    return network.embed(x.flatten(0, 1)).view(classes, count, -1).mean(dim=1)
