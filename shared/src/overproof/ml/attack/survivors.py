"""Going on with the rows that are not decided yet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

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


def due(step: int, device: torch.device) -> bool:
    """Whether survivors are looked for after `step`; the same steps whatever the batch."""
    return device.type == "cpu" or step % _STEPS_BETWEEN == _STEPS_BETWEEN - 1


def remaining(undecided: Tensor) -> Tensor | None:
    """Numbers of the undecided rows; None if all are, so that there is nothing to do. Waits.

    Args:
        undecided: (B,) bool.
    """
    rows = undecided.nonzero().view(-1)
    return None if len(rows) == len(undecided) else rows


def survivors(victim: Victim) -> Tensor:
    """(M,) int64 numbers of the rows that are not broken. Waits for the device."""
    return (~victim.broken).nonzero().view(-1)
