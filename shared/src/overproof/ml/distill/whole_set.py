"""The upper reference: all training images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.distillation import WholeSetParams
from overproof.ml.distill.base import DistillationMethod, DistilledSet
from overproof.ml.distill.real_images import RealImages


class WholeSet(DistillationMethod[WholeSetParams]):
    """All training images, class after class, whatever number of images per class is asked for.

    In an experiment networks are trained on the data set itself, of which no copy is made.
    """

    @property
    def total_steps(self) -> int:
        """None: there is nothing to optimise."""
        return 0

    def step(self, index: int) -> Mapping[str, float]:
        """Never called."""
        raise IndexError(f"the whole set has no step {index}")

    def result(self) -> DistilledSet:
        """The images in their stored order within each class."""
        real = RealImages(self.problem.dataset, torch.device("cpu"))
        classes = torch.arange(self.problem.dataset.classes)
        return DistilledSet(
            images=real.pixels(torch.arange(int(real.counts.sum()))),
            labels=classes.repeat_interleave(real.counts),
        )

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to take up."""
