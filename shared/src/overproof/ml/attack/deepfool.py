"""DeepFool: to the nearest boundary of the linearised network, again and again."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from overproof.catalog.gradient_attacks import DeepFoolParams
from overproof.core.threat import Norm
from overproof.ml.attack.ball import l2_norm
from overproof.ml.attack.base import Attack
from overproof.ml.attack.victim import Victim

# Added to the length of every step, as in the reference code of the paper: where the pixel box cuts
# the steps, they would otherwise come ever closer to the boundary without crossing it.
_BEYOND = 1e-4


class L2DeepFool(Attack[DeepFoolParams]):
    """Sums the shortest steps to the nearest linearised boundary until one is crossed.

    The image judged after each step is x + (1 + overshoot) · sum of the steps, cut to the pixel
    box. On a linear network one step suffices, and the distance is 1 + overshoot times that of the
    boundary plus 0.0001, unless the box cuts.

    Source: arXiv:1511.04599, algorithm 2; Harry24k/adversarial-attacks-pytorch, deepfool.py.
    Differs: the overshoot stretches the sum once and not each step, as in the paper; images go on
    together instead of one by one; a class whose gradient equals that of the true one is passed
    over, where 0/0 would end the sample.
    """

    norm: ClassVar[Norm] = Norm.L2
    minimum_norm: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The first misclassified image, the clean one where none was found."""
        victim.keep_images()
        total, x_adv = torch.zeros_like(x), x
        for _ in range(self.params.steps):
            alive = victim.nearest.isinf().nonzero().view(-1)
            if not len(alive):
                break
            survivors = victim.subset(alive)
            total[alive] += _to_boundary(survivors, x_adv[alive])
            x_adv = (x + (1.0 + self.params.overshoot) * total).clamp(0.0, 1.0)
            survivors.predict(x_adv[alive])
        return victim.images


def _to_boundary(victim: Victim, x_adv: Tensor) -> Tensor:
    """(B, C, H, W) shortest step to a linearised boundary; zero where all gradients are zero."""
    step = torch.zeros_like(x_adv)
    nearest = torch.full((len(x_adv),), torch.inf, device=x_adv.device)
    for difference, normal in victim.boundaries(x_adv):
        length = l2_norm(normal)
        away = torch.where(length > 0, difference.abs() / length, torch.inf)
        nearer = (away < nearest).view(-1, 1, 1, 1)
        stretch = torch.where(length > 0, (away + _BEYOND) / length, 0.0).view(-1, 1, 1, 1)
        step = torch.where(nearer, stretch * normal, step)
        nearest = torch.minimum(nearest, away)
    return step
