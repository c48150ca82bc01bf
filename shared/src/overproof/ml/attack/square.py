"""Square: random search that recolours squares, without a look at gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from overproof.catalog.autoattack import SquareParams
from overproof.ml.attack.base import Attack
from overproof.ml.attack.losses import margin
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.survivors import RowState, due, remaining, survivors
from overproof.ml.attack.victim import Victim

# Draws are made for so many queries at once: hashing costs little more for many numbers than for
# one. Part of what a seed means: another number gives other draws.
BLOCK = 64

# Up to which query, of 10,000, the share of pixels is p_init divided by what.
_SCHEDULE = (
    (10, 1),
    (50, 2),
    (200, 4),
    (500, 8),
    (1_000, 16),
    (2_000, 32),
    (4_000, 64),
    (6_000, 128),
    (8_000, 256),
)
_LAST_DIVISOR = 512


@dataclass
class _Position(RowState):
    x: Tensor
    low: Tensor
    high: Tensor
    best: Tensor
    margin: Tensor  # at `best`; not positive once it is misclassified
    ids: Tensor
    draws: Tensor  # (B, BLOCK, 2 + C), of the queries of this block


class LinfSquare(Attack[SquareParams]):
    """Square in L∞: from vertical stripes, one square of one colour a query, kept if it helps.

    Source: arXiv:1912.00049, algorithms 1 and 2; fra31/auto-attack, square.py, and
    Harry24k/adversarial-attacks-pytorch, square.py, whose squares never touch the lower and the
    right edge. Differs: each sample has its own squares instead of one for the whole batch, unless
    `batch_shared_draws` asks for that.
    """

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """A misclassified image, or `x` where there was none."""
        victim.keep_images()
        for restart in range(self.params.restarts):
            rows = survivors(victim)
            if len(rows) == 0:
                break
            self._search(victim.subset(rows), x[rows], radius[rows], ids[rows], restart)
        return victim.images

    def _search(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> None:
        _, channels, height, width = x.shape
        bound = radius.view(-1, 1, 1, 1)
        low, high = (x - bound).clamp_(min=0.0), (x + bound).clamp_(max=1.0)
        stripes = uniform_noise(ids, (channels, 1, width), self.seed, "square-start", restart)
        best = torch.where(stripes < 0.5, low, high)
        start_margin = -margin(victim.logits(best), victim.labels)
        draws = x.new_empty(len(x), 0)
        at = _Position(x, low, high, best, start_margin, ids, draws)
        for query in range(self.params.queries):
            if due(query, x.device):
                rows = remaining(at.margin > 0)
                if rows is not None:
                    if len(rows) == 0:
                        return
                    victim, at = victim.subset(rows), at.taken(rows)
            block, place = divmod(query, BLOCK)
            if place == 0:
                shape = (BLOCK, 2 + channels)
                drawn_for = whose_draws(at.ids, self.params)
                at.draws = uniform_noise(drawn_for, shape, self.seed, "square", restart, block)
            side = self.side(query, height, width)
            candidate = _recoloured(at, at.draws[:, place], side)
            margin_there = -margin(victim.logits(candidate), victim.labels)
            # A sample that is done and not yet taken out keeps what it has.
            better = (margin_there < at.margin) & (at.margin > 0)
            at.best = torch.where(better.view(-1, 1, 1, 1), candidate, at.best)
            at.margin = torch.where(better, margin_there, at.margin)

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the square of a query, in pixels."""
        side = round(sqrt(share_of_pixels(self.params, query) * height * width))
        return min(max(side, 1), height, width)


def share_of_pixels(params: SquareParams, query: int) -> float:
    """Share of the image that a query may change, by the schedule of the paper."""
    if params.rescale_schedule:
        query = int(query / params.queries * 10_000)
    divisor = next((by for last, by in _SCHEDULE if query <= last), _LAST_DIVISOR)
    return params.p_init / divisor


def whose_draws(ids: Tensor, params: SquareParams) -> Tensor:
    """(B,) samples whose draws are used: each its own, or those of sample 0 for all."""
    return torch.zeros_like(ids) if params.batch_shared_draws else ids


def _recoloured(at: _Position, draws: Tensor, side: int) -> Tensor:
    """`best` with a square of each image set to the lower or upper bound, channel by channel."""
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
