"""CutMix: a box of each image is replaced by that of another, and its label by its share."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def cutmix(
    x: Tensor, labels: Tensor, classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix a batch with a permutation of itself; one box for all.

    The box covers 1 - λ of the image before it is clipped, with λ uniform in [0, 1); labels are
    mixed by the area that is left of it.

    Args:
        x: (B, C, H, W) images.
        labels: (B,) int64 classes, or (B, …) float32, of which rows are mixed.
        classes: K.
        generator: on the CPU.

    Returns:
        (B, C, H, W) mixed images; (B, K) probabilities of classes, or labels of their own shape.

    Source: arXiv:1905.04899, section 3.1; snu-mllab/Efficient-Dataset-Condensation, train.py.
    Differs: no.
    """
    H, W = x.shape[2:]
    top, bottom, left, right = box_of((H, W), generator)
    order = torch.randperm(len(x), generator=generator).to(x.device)
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = x[order, :, top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (H * W)
    is_soft = labels.is_floating_point()
    targets = labels if is_soft else functional.one_hot(labels, classes).to(x.dtype)
    return mixed, kept * targets + (1 - kept) * targets[order]


def box_of(size: tuple[int, int], generator: torch.Generator) -> tuple[int, int, int, int]:
    """A random box: first row and the one after the last, first column and the one after the last.

    Args:
        size: (H, W) of the images.
        generator: on the CPU.
    """
    share, centre_y, centre_x = torch.rand(3, generator=generator).tolist()
    return *_span(size[0], centre_y, share), *_span(size[1], centre_x, share)


def _span(side: int, centre: float, share: float) -> tuple[int, int]:
    """First and last-but-one pixel of the box along one axis, clipped."""
    length = int(side * math.sqrt(1 - share))
    middle = min(int(centre * side), side - 1)
    return max(middle - length // 2, 0), min(middle + length // 2, side)
