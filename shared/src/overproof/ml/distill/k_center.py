"""k-center: images such that none of their class is far from all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.catalog.distillation import KCenterParams
from overproof.errors import ShapeError
from overproof.ml.distill.feature_selection import FeatureSelection
from overproof.ml.seeding import generator


class KCenter(FeatureSelection[KCenterParams]):
    """Choose the image farthest from those chosen before, until there are enough.

    The largest distance that remains is at most twice the smallest that is possible.

    Source: Gonzalez 1985; arXiv:1708.00489, algorithm 1. Differs: each class by itself; begins
    with the image nearest to the class mean, unless `first` is `random`.
    """

    def choose(self, features: Tensor, label: int) -> Tensor:
        """See `farthest_first`."""
        if self.params.first == "random":
            stream = generator(self.problem.seed, "first-centre", label)
            first = int(torch.randint(len(features), (1,), generator=stream))
        else:
            first = int((features - features.mean(dim=0)).square().sum(dim=1).argmin())
        return farthest_first(features, self.problem.images_per_class, first)


def farthest_first(features: Tensor, count: int, first: int) -> Tensor:
    """Greedily choose the row that is farthest from the chosen ones.

    Args:
        features: (N, D) floating point, any device.
        count: how many rows, at most N; none is chosen twice. Of equals the first is chosen.
        first: the row to begin with.

    Returns:
        (count,) int64, in the order of choice, on the CPU.

    Raises:
        ShapeError: there are fewer rows.
    """
    if count > len(features):
        raise ShapeError(f"{count} of {len(features)} rows cannot be chosen")
    chosen = [first]
    # Squared distance to the nearest chosen row; below 0 for the chosen ones, even where other
    # rows equal them.
    nearest = torch.full((len(features),), torch.inf, dtype=features.dtype, device=features.device)
    for _ in range(count - 1):
        distance = (features - features[chosen[-1]]).square().sum(dim=1)
        nearest = torch.minimum(nearest, distance)
        nearest[chosen[-1]] = -1
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)
