"""What is known of each sample under attack: every point that was looked at is judged here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.core.threat import Norm
from overproof.ml.attack.ball import distance
from overproof.ml.attack.passes import CleanPass

# Float32 rounding of `x + delta` moves a point on the sphere by at most this much.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Report:
    """What a shorter run of the same attack would have ended with.

    Attributes:
        prediction: (B,) int64, at the iterate.
        worst: (B,) bool, correct at the clean image and at every allowed point up to it.
    """

    prediction: Tensor
    worst: Tensor


class Record:
    """What is known so far of each row of a batch, shared by a victim and its subsets.

    Args:
        clean: the clean pass over the batch.
        y: (B,) int64.

    Attributes:
        nearest: (B,) float32, distance of the nearest misclassified point in the pixel box; 0
            where the clean image is one, infinite for none.
        finite: (B,) bool, all logits were finite.
        flat: (B,) bool, some gradient was zero in every pixel while the sample was still right.
        images: (B, C, H, W), the nearest misclassified points, else the clean ones; None while
            they are not kept.
        broken_by: (B,) int64, part of a cascade that broke the sample, -1 for none.
        forward_passes, backward_passes: rows sent through the network.
        notes: what the attack had to do differently for this network.
    """

    def __init__(self, clean: CleanPass, y: Tensor) -> None:
        wrong = clean.prediction != y
        self.nearest = torch.full(y.shape, torch.inf, device=y.device).masked_fill(wrong, 0.0)
        self.finite = clean.finite.clone()
        self.flat = torch.zeros_like(wrong)
        self.images: Tensor | None = None
        self.broken_by = torch.full_like(y, -1)
        self.forward_passes = 0
        self.backward_passes = 0
        self.notes: list[str] = []

    def count(self, *, forward: int, backward: int) -> None:
        """Add rows that went through the network."""
        self.forward_passes += forward
        self.backward_passes += backward

    def judge(
        self, rows: Tensor, x: Tensor, y: Tensor, x_adv: Tensor, logits: Tensor, norm: Norm
    ) -> None:
        """Put a look at some rows on record.

        Args:
            rows: (M,) int64, numbers of the rows in the batch.
            x: (M, C, H, W), their clean images.
            y: (M,) int64, their labels.
            x_adv: (M, C, H, W), the points looked at, anywhere.
            logits: (M, K) at these points.
            norm: of the distance.
        """
        self.finite[rows] &= logits.isfinite().all(dim=1)
        wrong = logits.argmax(dim=1) != y
        if not x_adv.is_cuda:
            # Asking a GPU would wait for it; asking a CPU saves measuring what cannot count.
            some = wrong.nonzero().view(-1)
            if len(some) == 0:
                return
            rows, x, x_adv, wrong = rows[some], x[some], x_adv[some], wrong[some]
        values = x_adv.flatten(1)  # aminmax takes ten times as long by rows as amin and amax
        in_box = (values.amin(dim=1) >= 0.0) & (values.amax(dim=1) <= 1.0)
        away = distance(x_adv, x, norm).masked_fill(~(wrong & in_box), torch.inf)
        nearest = self.nearest[rows]
        if self.images is not None:
            closer = (away < nearest).view(-1, 1, 1, 1)
            self.images[rows] = torch.where(closer, x_adv, self.images[rows])
        self.nearest[rows] = torch.minimum(nearest, away)

    def note_flat(self, rows: Tensor, gradient: Tensor, right: Tensor) -> None:
        """Put on record which gradients are zero in every pixel, where the sample is right.

        Args:
            rows: (M,) int64.
            gradient: (M, C, H, W).
            right: (M,) bool.
        """
        self.flat[rows] |= (gradient.flatten(1).abs().amax(dim=1) == 0) & right
