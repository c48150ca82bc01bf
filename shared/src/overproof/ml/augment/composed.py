"""Differentiable augmentation of IDC: several families after another instead of one of all.

Flip, then colour, then one of crop, scale and rotation, then cutout, as far as they are named.

Source: arXiv:2205.14959, section 4.2; snu-mllab/Efficient-Dataset-Condensation, misc/augment.py
(`DiffAug`). Differs: a generator of the caller instead of numpy's global one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.ml.augment import dsa

_STAGES = (("flip",), ("color",), ("crop", "scale", "rotate"), ("cutout",))


def draw(
    families: tuple[str, ...], generator: torch.Generator, groups: int, *, siamese: bool
) -> tuple[dsa.Draw, ...]:
    """Decide how `groups` groups of images are augmented, one draw for each stage.

    Args:
        families: see `dsa.strategy_of`.
        generator: on the CPU; advanced by an amount that depends on `families` and `groups`.
        groups: for training, the number of images; for matching, the number of classes.
        siamese: see `dsa.draw`.
    """
    stages = [tuple(family for family in stage if family in families) for stage in _STAGES]
    return tuple(dsa.draw(stage, generator, groups, siamese=siamese) for stage in stages if stage)


def apply(x: Tensor, drawn: tuple[dsa.Draw, ...]) -> Tensor:
    """`x` after all stages; see `dsa.apply`."""
    for stage in drawn:
        x = dsa.apply(x, stage)
    return x
