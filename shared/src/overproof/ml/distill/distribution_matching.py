"""Distribution matching (DM): class means of the features of random networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from overproof.catalog.distillation import DistributionMatchingParams, feature_rate
from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.passes import RealPasses, class_features
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import SyntheticImages, augmented
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import has_batch_statistics

Batches = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


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
        self._learning_rate = params.learning_rate or feature_rate(
            dataset.name, problem.images_per_class
        )
        self._families = dsa.strategy_of(params.strategy, mirrors=dataset.mirrors)
        normalizer = problem.build()
        self._normalizer = normalizer
        self._synthetic = SyntheticImages(problem, self._real, params.init, normalizer)
        rows_of_class = self._real_batch + problem.images_per_class
        self._classes_at_once = max(1, problem.rows_at_once // rows_of_class)
        self._passes = RealPasses(
            problem,
            normalizer.network,
            images=self.total_steps * dataset.classes * self._real_batch,
        )
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

        def batches(values: Tensor, group: slice) -> tuple[Tensor, Tensor]:
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            return augmented(real, drawn, group), augmented(values, drawn, group)

        gradient, loss = matching_gradient(
            network,
            self._synthetic.values,
            batches,
            self._passes,
            classes_at_once=self._classes_at_once,
        )
        self._synthetic.step(
            gradient, learning_rate=self._learning_rate, momentum=self.params.momentum
        )
        return self._read(index, loss)

    def result(self) -> DistilledSet:
        """The images as they are now."""
        return self._synthetic.distilled()

    def demand(self) -> Demand:
        """Images of a group of classes, and what is kept of the synthetic ones for a gradient."""
        costs = NetworkCosts.of(self._normalizer.network, self.problem.dataset.facts)
        together = min(self._classes_at_once, self.problem.dataset.classes)
        passing = self._passes.bytes_at_once(costs, self._real_batch, together)
        return Demand(
            [
                Part("", 1, 2 * costs.parameters + passing),
                Part("real_batch", self._real_batch, together * COPIES * costs.image),
                Part(
                    "images_per_class",
                    self.problem.images_per_class,
                    together * (COPIES * costs.image + costs.first + 2 * costs.largest),
                ),
            ]
        )

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self._synthetic.distilled().images

    def notes(self) -> Mapping[str, str | int]:
        """How real images are computed."""
        return {"means": self._passes.means.value, "means_reason": self._passes.reason}

    def state(self) -> dict[str, Tensor]:
        """Images and velocity; networks are drawn anew in every step."""
        return self._synthetic.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)


def matching_gradient(
    network: Network,
    values: Tensor,
    batches: Batches,
    passes: RealPasses,
    *,
    classes_at_once: int,
    entropy_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Where to move synthetic images so that their mean features are those of real ones.

    Args:
        network: normalised images → features and logits.
        values: (K, n, C, H, W) what is optimised, of all classes.
        batches: values of some classes and which classes these are → normalised real and synthetic
            images (k, m, C, H, W) as the network sees them, the latter differentiable by the
            values.
        passes: of the real images.
        classes_at_once: bounds memory; the result is the same but for rounding.
        entropy_weight: () of each class's mean cross entropy of the synthetic images, which is
            added to the squared distance; None for none.

    Returns:
        The gradient like `values`, and the loss summed over classes; no history.
    """
    total = torch.zeros((), device=values.device)
    gradient = torch.empty_like(values)
    for first in range(0, len(values), classes_at_once):
        group = slice(first, first + classes_at_once)
        leaf = values[group].detach().requires_grad_(True)
        real, synthetic = batches(leaf, group)
        target = passes.mean_features(network, real)
        features = class_features(network, synthetic)
        loss = (target - features.mean(dim=1)).square().sum()
        if entropy_weight is not None:
            count = features.shape[1]
            labels = torch.arange(len(values), device=values.device)[group]
            logits = network.classify(features.flatten(0, 1))
            entropy = functional.cross_entropy(
                logits, labels.repeat_interleave(count), reduction="sum"
            )
            loss = loss + entropy_weight * entropy / count
        (gradient[group],) = torch.autograd.grad(loss, leaf)
        total += loss.detach()
    return gradient, total
