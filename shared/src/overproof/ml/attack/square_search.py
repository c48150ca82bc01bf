"""What Square does in every norm: one change a query, kept if the margin shrinks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from overproof.catalog.autoattack import SquareParams
from overproof.ml.attack.base import Attack
from overproof.ml.attack.losses import margin
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.survivors import RowState, on_survivors, restarts
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
class Position(RowState):
    """The best image of each sample so far, and the draws of the next queries."""

    x: Tensor
    radius: Tensor
    low: Tensor  # allowed values of each pixel in the L∞ ball and the box
    high: Tensor
    best: Tensor
    margin: Tensor  # at `best`; not positive once it is misclassified
    ids: Tensor
    draws: Tensor  # (B, BLOCK, places + C), of the queries of this block


class SquareSearch(Attack[SquareParams]):
    """Random search with windows of shrinking size; see the attacks themselves."""

    survivors_only: ClassVar[bool] = True
    # Draws of a query before the signs of the channels: where its windows are and the like.
    places: ClassVar[int]
    # How many of a query's draws published code makes once for all images; None for all of them.
    shared_places: ClassVar[int | None] = None

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """A misclassified image, or `x` where there was none."""
        victim.keep_images()
        for restart, rows in restarts(victim, self.params.restarts):
            self._search(victim.subset(rows), x[rows], radius[rows], ids[rows], restart)
        return victim.images

    def _search(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> None:
        best = self._start(x, radius, ids, restart)
        start_margin = -margin(victim.logits(best), victim.labels)
        start = Position(
            x, radius, *linf_bounds(x, radius), best, start_margin, ids, x.new_empty(len(x), 0)
        )
        shape = (BLOCK, self.places + x.shape[1])
        queries = on_survivors(victim, start, self.params.queries, lambda _, at: at.margin > 0)
        for query, victim_now, at in queries:
            block, place = divmod(query, BLOCK)
            if place == 0:
                at.draws = self._draws(
                    at.ids, shape, "square", restart, block, shared=self.shared_places
                )
            side = self.side(query, *x.shape[2:])
            candidate = self._candidate(at, at.draws[:, place], side)
            margin_there = -margin(victim_now.logits(candidate), victim_now.labels)
            # A sample that is done and not yet taken out keeps what it has.
            better = (margin_there < at.margin) & (at.margin > 0)
            at.best = torch.where(better.view(-1, 1, 1, 1), candidate, at.best)
            at.margin = torch.where(better, margin_there, at.margin)

    @abstractmethod
    def _start(self, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> Tensor:
        """(B, C, H, W) images that the search starts from, inside ball and box."""

    @abstractmethod
    def _candidate(self, at: Position, draws: Tensor, side: int) -> Tensor:
        """(B, C, H, W) changed images, inside ball and box.

        Args:
            at: where the search stands; not changed.
            draws: (B, places + C) in [0, 1).
            side: of the windows, in pixels.
        """

    @abstractmethod
    def side(self, query: int, height: int, width: int) -> int:
        """Side of the windows of a query, in pixels."""

    def _draws(
        self,
        ids: Tensor,
        shape: tuple[int, ...],
        *labels: str | int,
        shared: int | None,
    ) -> Tensor:
        """Noise by sample; with `batch_shared_draws` some of the last dimension is sample 0's.

        Args:
            ids: (B,) int64.
            shape: of one sample's noise.
            *labels: purpose and counters.
            shared: how many of the last dimension, counted from the first; None for all.
        """
        own = uniform_noise(ids, shape, self.seed, *labels)
        if self.params.batch_shared_draws:
            of_all = uniform_noise(torch.zeros_like(ids), shape, self.seed, *labels)
            own[..., :shared] = of_all[..., :shared]
        return own


def share_of_pixels(params: SquareParams, query: int) -> float:
    """Share of the image that a query may change, by the schedule of the paper."""
    if params.rescale_schedule:
        query = int(query / params.queries * 10_000)
    divisor = next((by for last, by in _SCHEDULE if query <= last), _LAST_DIVISOR)
    return params.p_init / divisor


def linf_bounds(x: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest value of each pixel in the L∞ ball and the box."""
    bound = radius.view(-1, 1, 1, 1)
    return (x - bound).clamp_(min=0.0), (x + bound).clamp_(max=1.0)
