"""Iterated gradient steps with projection: BIM from the image, PGD from random starts."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from overproof.catalog.gradient_attacks import BimParams, L2PgdParams, PgdParams
from overproof.core.threat import Norm, epsilon_value
from overproof.ml.attack.ball import project_linf
from overproof.ml.attack.base import Attack
from overproof.ml.attack.steps import ascend, random_start, shorter_runs
from overproof.ml.attack.victim import Victim

PgdLike = TypeVar("PgdLike", PgdParams, L2PgdParams)


class LinfBasicIterative(Attack[BimParams]):
    """BIM: `steps` signed steps from the image itself, each followed by the projection.

    Source: arXiv:1607.02533, section 2.2; Harry24k/adversarial-attacks-pytorch, bim.py. Differs:
    the loss is a sum over the batch instead of a mean, which changes no sign.
    """

    uses_clean_gradient: ClassVar[bool] = True

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run."""
        return shorter_runs(self.params.steps)

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate; the first gradient is the clean one."""
        step_size = epsilon_value(self.params.step_size)
        first = project_linf(x + step_size * victim.clean_gradient().sign(), x, radius)
        return ascend(
            victim,
            first,
            x,
            radius,
            norm=self.norm,
            steps=self.params.steps,
            step_size=step_size,
            done=1,
        )


class _ProjectedGradientDescent(Attack[PgdLike]):
    """Steepest ascent of the cross entropy from a random point of the ball.

    With several restarts the point returned is, for each image, the last iterate of the first
    restart that ends misclassified, else of the last restart; the worst case covers the iterates
    of all of them. The start of an image follows from seed, image and restart, not from the
    radius: larger balls scale the same direction.
    """

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run; none with restarts, whose iterates end different runs."""
        return shorter_runs(self.params.steps) if self._restarts == 1 else ()

    @property
    def _restarts(self) -> int:
        return self.params.restarts if self.params.random_start else 1

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate, chosen over the restarts."""
        params = self.params
        chosen = x
        fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for restart in range(self._restarts):
            start = x
            if params.random_start:
                start = random_start(x, radius, ids, self.seed, "start", restart, norm=self.norm)
            x_adv = ascend(
                victim,
                start,
                x,
                radius,
                norm=self.norm,
                steps=params.steps,
                step_size=epsilon_value(params.step_size),
            )
            chosen = torch.where(fooled.view(-1, 1, 1, 1), chosen, x_adv)
            if restart + 1 < self._restarts:
                fooled |= victim.predict(x_adv) != victim.labels
        return chosen


class LinfProjectedGradientDescent(_ProjectedGradientDescent[PgdParams]):
    """PGD in L∞: signed steps from a uniform random point of the ball, cut to the pixel box.

    Source: arXiv:1706.06083, section 2.1; Harry24k/adversarial-attacks-pytorch, pgd.py. Differs:
    sum instead of mean over the batch; noise by sample instead of from a shared generator.
    """

    norm: ClassVar[Norm] = Norm.LINF


class L2ProjectedGradientDescent(_ProjectedGradientDescent[L2PgdParams]):
    """PGD in L2: steps along the gradient of length `step_size`, from a random point of the ball.

    Source: arXiv:1706.06083, section 2.1; Harry24k/adversarial-attacks-pytorch, pgdl2.py. Differs:
    as for L∞; a gradient is scaled before it is squared, so a tiny one still gives a whole step.
    """

    norm: ClassVar[Norm] = Norm.L2
