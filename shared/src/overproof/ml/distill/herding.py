"""Herding: the images whose running mean of features follows the mean of their class."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.catalog.distillation import HerdingParams
from overproof.errors import ShapeError
from overproof.ml.distill.feature_selection import FeatureSelection


class Herding(FeatureSelection[HerdingParams]):
    """Choose images whose features add up to about a multiple of the class mean.

    Source: Welling 2009; arXiv:1611.07725 (iCaRL), algorithm 4. Differs: features are the input of
    the last layer and are not scaled to length one.
    """

    def choose(self, features: Tensor, label: int) -> Tensor:
        """See `herd`."""
        return herd(features.cpu(), self.problem.images_per_class)


def herd(features: Tensor, count: int) -> Tensor:
    """Greedily choose rows so that after k choices their sum is near k times the mean.

    Args:
        features: (N, D) floating point, on the CPU.
        count: how many rows, at most N; none is chosen twice. Of equals the first is chosen.

    Returns:
        (count,) int64, in the order of choice.

    Raises:
        ShapeError: there are fewer rows.
    """
    if count > len(features):
        raise ShapeError(f"{count} of {len(features)} rows cannot be chosen")
    features = features.double()
    mean = features.mean(dim=0)
    squares = features.square().sum(dim=1)
    is_free = torch.ones(len(features), dtype=torch.bool)
    rest = torch.zeros_like(mean)  # (k + 1) · mean less the sum of the k chosen
    chosen = []
    for _ in range(count):
        rest = rest + mean
        # |rest - φ|² without the term that is equal for all
        cost = squares - 2 * (features @ rest)
        best = int(torch.where(is_free, cost, torch.inf).argmin())
        chosen.append(best)
        is_free[best] = False
        rest = rest - features[best]
    return torch.tensor(chosen)
