"""Going on with the rows that are not decided yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Self, TypeVar

import torch
from torch import Tensor

from overproof.ml.attack.victim import Victim

# Asking a GPU who survives waits for it, so there it is done now and then only; rows that are
# decided meanwhile go through the network for nothing, which changes no flag.
_STEPS_BETWEEN = 8


@dataclass
class RowState:
    """A base of dataclasses whose fields are tensors with one row a sample."""

    def taken(self, rows: Tensor) -> Self:
        """The state of some rows, by their (M,) int64 numbers."""
        return type(self)(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


S = TypeVar("S", bound=RowState)


def restarts(victim: Victim, count: int) -> Iterator[tuple[int, Tensor]]:
    """Numbers of restarts, each with the (M,) int64 rows that are not broken by then.

    They end where no row is left. Waits for the device.
    """
    for restart in range(count):
        rows = (~victim.broken).nonzero().view(-1)
        if len(rows) == 0:
            return
        yield restart, rows


def on_survivors(
    victim: Victim, state: S, steps: int, undecided: Callable[[Victim, S], Tensor]
) -> Iterator[tuple[int, Victim, S]]:
    """Steps of an attack that goes on with the undecided rows only.

    Args:
        victim: of all rows.
        state: of all rows; what is yielded instead of it may be changed in place.
        steps: at most; they end where no row is left.
        undecided: which rows of a victim and its state are to go on, (B,) bool.

    Yields:
        The number of a step, and victim and state of the rows that take it.
    """
    for step in range(steps):
        if _due(step, victim.labels.device):
            rows = undecided(victim, state).nonzero().view(-1)
            if len(rows) == 0:
                return
            if len(rows) < len(victim.labels):
                victim, state = victim.subset(rows), state.taken(rows)
        yield step, victim, state


def not_broken(victim: Victim, state: RowState) -> Tensor:
    """(B,) bool, the usual meaning of undecided."""
    return ~victim.broken


def _due(step: int, device: torch.device) -> bool:
    """Whether survivors are looked for before `step`; the same steps whatever the batch."""
    return device.type == "cpu" or step % _STEPS_BETWEEN == _STEPS_BETWEEN - 1
