"""The baseline: images drawn at random."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.distillation import RandomParams
from overproof.ml.distill.base import DistillationMethod, DistilledSet
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.seeding import generator


class RandomSelection(DistillationMethod[RandomParams]):
    """n training images of each class, without replacement, with equal chances."""

    @property
    def total_steps(self) -> int:
        """None: there is nothing to optimise."""
        return 0

    def step(self, index: int) -> Mapping[str, float]:
        """Never called."""
        raise IndexError(f"random selection has no step {index}")

    def result(self) -> DistilledSet:
        """The images drawn."""
        problem = self.problem
        real = RealImages(problem.dataset, torch.device("cpu"))
        numbers = real.draw(problem.images_per_class, generator(problem.seed, "selection"))
        return DistilledSet(
            images=real.pixels(numbers).flatten(0, 1),
            labels=labels_of(problem.dataset.classes, problem.images_per_class),
        )

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to take up."""
