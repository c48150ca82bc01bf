"""Mixing of images by records: a box of each image from a partner, or a weighted mean of both.

A record is drawn for a batch and kept for each of its images, so that a mixed image can be made
again beside any others.

Source: arXiv:1905.04899, section 3.1 (CutMix); arXiv:1710.09412 (mixup); VILA-Lab/SRe2L,
relabel/utils_fkd.py. Differs: a generator of the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from scipy.special import betaincinv
from torch import Tensor

from overproof.ml.augment.cutmix import box_of

Mixing = Literal["none", "cutmix", "mixup"]

_MIXUP_ALPHA = 0.8


@dataclass(frozen=True, kw_only=True)
class Mixes:
    """How B images are mixed, on the CPU.

    Attributes:
        partners: (B,) int64, the image that each is mixed with.
        boxes: (B, 4) int64 top, left, height, width of what comes from the partner; empty for none.
        shares: (B,) float32, how much of the rest is the image itself.
    """

    partners: Tensor
    boxes: Tensor
    shares: Tensor

    def of(self, rows: Tensor) -> Self:
        """Those of some images, by their (b,) int64 numbers."""
        return type(self)(
            partners=self.partners[rows], boxes=self.boxes[rows], shares=self.shares[rows]
        )


def draw(mixing: Mixing, batch: Tensor, size: tuple[int, int], generator: torch.Generator) -> Mixes:
    """Mix a batch with a permutation of itself: one box, or one share, for all of it.

    CutMix: the box covers 1 - λ of the image before it is clipped, with λ uniform in [0, 1).
    Mixup: the share is Beta(0.8, 0.8).

    Args:
        mixing: how.
        batch: (B,) int64 numbers of its images.
        size: (H, W) of the images.
        generator: on the CPU.
    """
    count = len(batch)
    boxes = torch.zeros(count, 4, dtype=torch.int64)
    shares = torch.ones(count)
    if mixing == "none":
        return Mixes(partners=batch, boxes=boxes, shares=shares)
    if mixing == "cutmix":
        top, bottom, left, right = box_of(size, generator)
        boxes[:] = torch.tensor([top, left, bottom - top, right - left])
    else:
        u = float(torch.rand((), generator=generator, dtype=torch.float64))
        shares[:] = float(betaincinv(_MIXUP_ALPHA, _MIXUP_ALPHA, u))
    partners = batch[torch.randperm(count, generator=generator)]
    return Mixes(partners=partners, boxes=boxes, shares=shares)


def apply(x: Tensor, others: Tensor, mixes: Mixes) -> Tensor:
    """(B, C, H, W) images mixed with their partners `others` of the same shape."""
    top, left, height, width = mixes.boxes.to(x.device).view(-1, 4, 1, 1).unbind(1)
    row = torch.arange(x.shape[2], device=x.device).view(1, -1, 1)
    column = torch.arange(x.shape[3], device=x.device).view(1, 1, -1)
    inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
    share = mixes.shares.to(x).view(-1, 1, 1, 1)
    return torch.where(inside.unsqueeze(1), others, share * x + (1 - share) * others)
