"""Iterated signed gradient steps with projection: BIM from the image, PGD from random starts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from overproof.catalog.attacks import BimParams, PgdParams
from overproof.core.threat import epsilon_value
from overproof.ml.attack.ball import project_linf
from overproof.ml.attack.base import Attack
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.victim import Victim


class LinfBasicIterative(Attack[BimParams]):
    """BIM: `steps` signed steps from the image itself, each followed by the projection.

    Source: arXiv:1607.02533, section 2.2; Harry24k/adversarial-attacks-pytorch, bim.py. Differs:
    the loss is a sum over the batch instead of a mean, which changes no sign.
    """

    uses_clean_gradient: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate; the first gradient is the clean one."""
        step_size = epsilon_value(self.params.step_size)
        first = project_linf(x + step_size * victim.clean_gradient().sign(), x, radius)
        return _iterate(victim, first, x, radius, self.params.steps - 1, step_size)


class LinfProjectedGradientDescent(Attack[PgdParams]):
    """PGD: as BIM, from a uniform random point of the ball, cut to the pixel box.

    With several restarts the point returned is, for each image, the last iterate of the first
    restart that ends misclassified, else of the last restart; the worst case covers the iterates
    of all of them. The start of an image follows from seed, image and restart, not from the
    radius: larger balls scale the same direction.

    Source: arXiv:1706.06083, section 2.1; Harry24k/adversarial-attacks-pytorch, pgd.py. Differs:
    sum instead of mean over the batch; noise by sample instead of from a shared generator.
    """

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate, chosen over the restarts."""
        params = self.params
        step_size = epsilon_value(params.step_size)
        restarts = params.restarts if params.random_start else 1
        chosen = x
        fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for restart in range(restarts):
            start = self._start(x, radius, ids, restart) if params.random_start else x
            x_adv = _iterate(victim, start, x, radius, params.steps, step_size)
            chosen = torch.where(fooled.view(-1, 1, 1, 1), chosen, x_adv)
            if restart + 1 < restarts:
                fooled |= victim.predict(x_adv) != victim.labels
        return chosen

    def _start(self, x: Tensor, radius: Tensor, ids: Tensor, restart: int) -> Tensor:
        noise = uniform_noise(ids, tuple(x.shape[1:]), self.seed, "start", restart)
        return (x + radius.view(-1, 1, 1, 1) * (2.0 * noise - 1.0)).clamp(0.0, 1.0)


def _iterate(
    victim: Victim, start: Tensor, x: Tensor, radius: Tensor, steps: int, step_size: float
) -> Tensor:
    x_adv = start
    for _ in range(steps):
        x_adv = project_linf(x_adv + step_size * victim.gradient(x_adv).sign(), x, radius)
    return x_adv
