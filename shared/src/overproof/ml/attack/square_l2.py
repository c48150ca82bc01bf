"""Square in L2: random search that moves the budget from one window of the image to another."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from overproof.core.threat import Norm
from overproof.ml.attack.ball import l2_norm
from overproof.ml.attack.square_search import Position, SquareSearch, share_of_pixels

_TINY = 1e-12
_TILES = 5  # the start has so many bumps along each side


class L2Square(SquareSearch):
    """Square in L2: a query empties one window and spends its share as a bump in another.

    Source: arXiv:1912.00049, algorithms 1 and 3; fra31/auto-attack, square.py, and
    Harry24k/adversarial-attacks-pytorch, square.py. Differs: each sample has its own windows and
    bumps instead of one for the whole batch, unless `batch_shared_draws` asks for that (signs are
    each sample's own there too); windows never exceed the image.
    """

    norm: ClassVar[Norm] = Norm.L2

    places: ClassVar[int] = 5  # two windows and which way the bump lies
    shared_places: ClassVar[int | None] = 5

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the windows of a query, in pixels: odd, unless the image is smaller."""
        side = max(round(sqrt(share_of_pixels(self.params, query) * height * width)), 3)
        return min(side + 1 - side % 2, height, width)

    def _candidate(self, at: Position, draws: Tensor, side: int) -> Tensor:
        """The budget of a second window spent in a first one."""
        return _moved(at, draws, side)

    def _start(self, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> Tensor:
        """Bumps side by side over the whole image."""
        channels, height, width = x.shape[1:]
        side = max(height // _TILES, 1)
        first = (height - side * _TILES) // 2 if height >= _TILES else 0
        down, across = height // side, width // side
        shape = (down, across, 1 + channels)
        draws = self._draws(ids, shape, "square-start", restart, shared=1)
        delta = torch.zeros_like(x)
        for i in range(down):
            for j in range(across):
                top, left = first + i * side, first + j * side
                window = delta[:, :, top : top + side, left : left + side]
                if window.shape[2:] == (side, side):
                    window += _bumps(draws[:, i, j], side)
        return _spent(x, delta, radius)


def _moved(at: Position, draws: Tensor, side: int) -> Tensor:
    """`best` with the budget of a second window spent in a first one."""
    delta = at.best - at.x
    channels, height, width = delta.shape[1:]
    top, left, other_top, other_left = (
        (draws[:, i] * (extent - side)).long()
        for i, extent in enumerate((height, width, height, width))
    )
    window = _window(delta, top, left, side)
    other = _window(delta, other_top, other_left, side)
    union = torch.zeros_like(delta)
    union[window] = 1.0
    union[other] = 1.0
    # What is spent: the windows' own share, and by channel what the image has left.
    unspent = (at.radius.square() - l2_norm(delta).square()).clamp(min=0.0) / channels
    budget = (unspent + l2_norm(delta * union).square()).sqrt()
    old = delta[window]
    bump = _bumps(draws[:, 4:], side) + old / (_TINY + _lengths(old))
    bump = bump / (_TINY + _lengths(bump)) * _wide(budget)
    delta[other] = 0.0
    delta[window] = bump
    return _spent(at.x, delta, at.radius)


def _window(images: Tensor, top: Tensor, left: Tensor, side: int) -> tuple[Tensor, ...]:
    """Indices of a window of each image, with (B, C, side, side) values."""
    count, channels = images.shape[:2]
    step = torch.arange(side, device=images.device)
    return (
        torch.arange(count, device=images.device).view(-1, 1, 1, 1),
        torch.arange(channels, device=images.device).view(1, -1, 1, 1),
        (top.view(-1, 1) + step).view(count, 1, side, 1),
        (left.view(-1, 1) + step).view(count, 1, 1, side),
    )


def _bumps(draws: Tensor, side: int) -> Tensor:
    """(B, C, side, side) bumps: the first draw says which way each lies, the others the signs."""
    shape = bump(side).to(draws.device)
    lies = (draws[:, 0] > 0.5).view(-1, 1, 1, 1)
    signs = torch.where(draws[:, 1:] < 0.5, -1.0, 1.0).view(len(draws), -1, 1, 1)
    return torch.where(lies, shape.T, shape) * signs


@lru_cache
def bump(side: int) -> Tensor:
    """(side, side) of length 1: a hill above a valley, each a pile of squares."""
    half = side // 2
    both = torch.cat([_pile(half, side), -_pile(side - half, side)])
    length: Tensor = both.norm()
    return both / length


def _pile(height: int, width: int) -> Tensor:
    """(height, width) of length 1: the i-th square around the centre adds 1 / i²."""
    pile = torch.zeros(height, width)
    row, column = height // 2, width // 2
    for reach in range(max(row, column) + 1):
        rows = slice(max(row - reach, 0), row + reach + 1)
        columns = slice(max(column - reach, 0), column + reach + 1)
        pile[rows, columns] += 1.0 / (reach + 1) ** 2
    length: Tensor = pile.norm()
    return pile / length if height else pile


def _spent(x: Tensor, delta: Tensor, radius: Tensor) -> Tensor:
    """`x` with a change along `delta` that is as long as the budget, cut to the box."""
    length = _wide(l2_norm(delta) + _TINY)
    return (x + delta / length * _wide(radius)).clamp(0.0, 1.0)


def _lengths(windows: Tensor) -> Tensor:
    """(B, C, 1, 1) L2 norm of each channel."""
    return windows.square().sum(dim=(2, 3), keepdim=True).sqrt()


def _wide(per_row: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1)."""
    return per_row.view(-1, 1, 1, 1)
