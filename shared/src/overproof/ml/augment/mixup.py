"""Mixup: each image becomes a weighted sum with another, and its label too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mixup(
    x: Tensor, targets: Tensor, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix a batch with a permutation of itself; one weight λ ~ Beta(α, α) for all.

    Args:
        x: (B, C, H, W) images.
        targets: (B, …) float32, of which rows are mixed.
        alpha: α > 0.
        generator: on the CPU.

    Returns:
        λ · x + (1 − λ) · x[order], and the same of the targets.

    Source: arXiv:1710.09412, section 2; facebookresearch/mixup-cifar10, train.py. Differs: no.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    order = torch.randperm(len(x), generator=generator).to(x.device)
    mixed = share * x + (1 - share) * x[order]
    return mixed, share * targets + (1 - share) * targets[order]
