"""How far apart two sets of gradients are, class by class.

Gradients come as one tensor for each parameter tensor, (K, *shape): K classes side by side. All
functions return (K,) and are differentiable with respect to both sides.

Source: arXiv:2006.05929, section 3.3; VICO-UoE/DatasetCondensation, utils.py, match_loss; the
absolute one from snu-mllab/Efficient-Dataset-Condensation, condense.py. Differs: no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from overproof.catalog.canvases import DistanceName

_EPSILON = 1e-6

Distance = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def layerwise_cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Sum over tensors and their rows of 1 - cosine; a row belongs to one output unit.

    Convolutions (O, I, h, w) have O rows, linear layers one a class. One-dimensional parameters
    (biases, scales and offsets of norms) count nothing, so callers need not compute them.
    """
    total = a[0].new_zeros(len(a[0]))
    for left, right in zip(a, b, strict=True):
        if left.ndim > 2:
            total = total + (1 - _cosine(left.flatten(2), right.flatten(2))).sum(dim=1)
    return total


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """1 - cosine of all gradients as one vector."""
    return 1 - _cosine(_joined(a), _joined(b))


def squared(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Squared Euclidean distance of all gradients as one vector."""
    return (_joined(a) - _joined(b)).square().sum(dim=1)


def absolute(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Sum of the absolute differences of all gradients as one vector."""
    return (_joined(a) - _joined(b)).abs().sum(dim=1)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine along the last axis; the constant keeps rows of zeros at 0."""
    result: Tensor = (a * b).sum(dim=-1) / (a.norm(dim=-1) * b.norm(dim=-1) + _EPSILON)
    return result


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)


DISTANCES: dict[DistanceName, Distance] = {
    "layerwise-cosine": layerwise_cosine,
    "squared": squared,
    "cosine": cosine,
    "absolute": absolute,
}
