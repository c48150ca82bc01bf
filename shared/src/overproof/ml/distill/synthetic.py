"""Synthetic images under optimisation: where they begin and how they take a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.models.base import Normalized
from overproof.ml.seeding import generator


def labels_of(classes: int, images_per_class: int) -> Tensor:
    """(K · n,) int64: n times 0, then n times 1, …"""
    return torch.arange(classes).repeat_interleave(images_per_class)


def augmented(x: Tensor, drawn: dsa.Draw, classes: slice) -> Tensor:
    """Images of some classes, each class under its own draw.

    Args:
        x: (k, n, C, H, W) normalised images of the k classes in `classes`.
        drawn: one draw for each of all classes.
        classes: which of them `x` holds.

    Returns:
        (k, n, C, H, W), differentiable with respect to `x`.
    """
    part = replace(drawn, choice=drawn.choice[classes], numbers=drawn.numbers[classes])
    return dsa.apply(x.flatten(0, 1), part).view(x.shape)


class SyntheticImages:
    """Images in normalised space with the velocity of SGD with momentum.

    Args:
        problem: seed, device, number of images.
        real: where `init: real` takes its images from.
        init: `real` for n different images of each class, `noise` for standard normal values; or
            (K, n) int64, the numbers of real images.
        normalizer: converts between pixels and normalised space.

    Attributes:
        values: (K, n, C, H, W) float32, normalised, unbounded.
    """

    def __init__(
        self,
        problem: Problem,
        real: RealImages,
        init: Literal["real", "noise"] | Tensor,
        normalizer: Normalized,
    ) -> None:
        stream = generator(problem.seed, "initial-images")
        facts = problem.dataset.facts
        self._normalizer = normalizer
        if isinstance(init, Tensor):
            self.values = normalizer.normalize(real.pixels(init))
        elif init == "real":
            numbers = real.draw(problem.images_per_class, stream)
            self.values = normalizer.normalize(real.pixels(numbers))
        else:
            shape = (facts.classes, problem.images_per_class, facts.channels, *facts.size)
            self.values = torch.randn(shape, generator=stream).to(problem.device)
        self._velocity = torch.zeros_like(self.values)

    def step(self, gradient: Tensor, *, learning_rate: float, momentum: float) -> None:
        """One step of SGD with momentum along `gradient`, in place."""
        self._velocity.mul_(momentum).add_(gradient)
        self.values.add_(self._velocity, alpha=-learning_rate)

    def distilled(
        self, *, logits: Tensor | None = None, learning_rate: float | None = None
    ) -> DistilledSet:
        """The images as pixels, not clamped, with their labels; on the CPU.

        Args:
            logits: soft labels of the set, None without.
            learning_rate: that the set carries, None without.
        """
        classes, images_per_class = self.values.shape[:2]
        pixels = self._normalizer.denormalize(self.values)
        return DistilledSet(
            images=pixels.flatten(0, 1).cpu(),
            labels=labels_of(classes, images_per_class),
            logits=logits,
            learning_rate=learning_rate,
            whitening=self._normalizer.whitening,
        )

    def state(self) -> dict[str, Tensor]:
        """Images and velocity; copies."""
        return {"images": self.values.clone(), "velocity": self._velocity.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self.values.copy_(state["images"])
        self._velocity.copy_(state["velocity"])
