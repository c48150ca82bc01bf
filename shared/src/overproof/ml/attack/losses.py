"""Losses that attacks climb: for each row of logits a number that grows as the class is lost.

All take (B, K) logits and (B,) int64 labels and return (B,), each of its own row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Keeps the ratio finite where all logits are equal; the value of the reference code.
_TINY = 1e-12


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log of the probability of the true class."""
    return functional.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Largest wrong logit minus the true one; positive where misclassified. K >= 2."""
    return runner_up(logits, y) - of_class(logits, y)


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Logit of the target minus the true one. K >= 2."""
    return of_class(logits, target) - of_class(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin over the difference of largest and third largest logit. K >= 3.

    Source: arXiv:2003.01690, equation 6; fra31/auto-attack, autopgd_base.py.
    """
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted margin over the largest logit minus the mean of third and fourth. K >= 4.

    Source: arXiv:2003.01690, equation 7; fra31/auto-attack, autopgd_base.py.
    """
    top = logits.topk(4, dim=1).values
    spread = top[:, 0] - 0.5 * top[:, 2] - 0.5 * top[:, 3] + _TINY
    return targeted_margin(logits, y, target) / spread


def of_class(logits: Tensor, classes: Tensor) -> Tensor:
    """(B,) logit of one class of each row."""
    return logits.gather(1, classes.view(-1, 1)).view(-1)


def runner_up(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) largest logit of any class but `y`."""
    return logits.scatter(1, y.view(-1, 1), -torch.inf).amax(dim=1)


def likeliest_wrong(logits: Tensor, y: Tensor, count: int | None) -> Tensor:
    """(B, T) int64: the classes but `y` by falling logit, T = min(count, K - 1)."""
    others = logits.shape[1] - 1
    masked = logits.scatter(1, y.view(-1, 1), -torch.inf)
    order = masked.argsort(dim=1, descending=True, stable=True)
    return order[:, : others if count is None else min(count, others)]
