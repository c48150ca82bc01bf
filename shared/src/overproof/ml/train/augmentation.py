"""What happens to a batch before a network sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.ml.augment import composed, dsa
from overproof.ml.augment.cutmix import cutmix
from overproof.ml.augment.mixup import mixup


@dataclass(frozen=True)
class Augmentation:
    """Differentiable augmentation of single images, then mixing of whole ones.

    Attributes:
        families: see `dsa.strategy_of`; empty for none.
        composed: apply one family after another, as IDC does, instead of one of all.
        cutmix: probability that a batch is mixed by CutMix.
        mixup: α of mixup's Beta(α, α), 0 for none.
    """

    families: tuple[str, ...] = ()
    composed: bool = False
    cutmix: float = 0.0
    mixup: float = 0.0

    def __call__(
        self, x: Tensor, targets: Tensor, stream: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A batch and its targets, changed.

        Args:
            x: (B, C, H, W) normalised images.
            targets: (B, …); where images are mixed, float32, of which rows are mixed with them.
            stream: on the CPU; advanced.

        Returns:
            Images and targets of the same shapes.
        """
        if self.composed:
            x = composed.apply(x, composed.draw(self.families, stream, len(x), siamese=False))
        else:
            x = dsa.apply(x, dsa.draw(self.families, stream, len(x), siamese=False))
        if self.mixup:
            x, targets = mixup(x, targets, self.mixup, stream)
        if self.cutmix and float(torch.rand((), generator=stream)) < self.cutmix:
            x, targets = cutmix(x, targets, targets.shape[-1], stream)
        return x, targets

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, and so labels, which then are probabilities."""
        return self.cutmix > 0 or self.mixup > 0
