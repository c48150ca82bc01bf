"""Square: random search that recolours squares, without a look at gradients."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.square_search import (
    Position,
    SquareSearch,
    linf_bounds,
    share_of_pixels,
)


class LinfSquare(SquareSearch):
    """Square in L∞: from vertical stripes, one square of one colour a query, kept if it helps.

    Source: arXiv:1912.00049, algorithms 1 and 2; fra31/auto-attack, square.py, and
    Harry24k/adversarial-attacks-pytorch, square.py, whose squares never touch the lower and the
    right edge. Differs: each sample has its own squares instead of one for the whole batch, unless
    `batch_shared_draws` asks for that.
    """

    places: ClassVar[int] = 2

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the square of a query, in pixels."""
        side = round(sqrt(share_of_pixels(self.params, query) * height * width))
        return min(max(side, 1), height, width)

    def _start(self, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> Tensor:
        """Vertical stripes."""
        low, high = linf_bounds(x, radius)
        shape = (x.shape[1], 1, x.shape[3])
        stripes = uniform_noise(ids, shape, self.seed, "square-start", restart)
        return torch.where(stripes < 0.5, low, high)

    def _candidate(self, at: Position, draws: Tensor, side: int) -> Tensor:
        """A square of each image set to the lower or upper bound, channel by channel."""
        height, width = at.x.shape[2:]
        top = (draws[:, 0] * (height - side)).long().view(-1, 1)
        left = (draws[:, 1] * (width - side)).long().view(-1, 1)
        rows = torch.arange(height, device=draws.device)
        columns = torch.arange(width, device=draws.device)
        in_rows = (rows >= top) & (rows < top + side)
        in_columns = (columns >= left) & (columns < left + side)
        square = in_rows.view(-1, 1, height, 1) & in_columns.view(-1, 1, 1, width)
        down = (draws[:, 2:] < 0.5).view(-1, at.x.shape[1], 1, 1)
        return torch.where(square, torch.where(down, at.low, at.high), at.best)
