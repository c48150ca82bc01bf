"""Signed steps along an average of past gradients: MI-FGSM, NI-FGSM and VMI-FGSM."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from overproof.catalog.gradient_attacks import MomentumParams, VarianceTuningParams
from overproof.core.threat import epsilon_value
from overproof.ml.attack.ball import project_linf
from overproof.ml.attack.base import Attack
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.steps import shorter_runs
from overproof.ml.attack.victim import Victim


class _Momentum:
    """The gradients of an attack so far, each scaled to a mean of 1 and weighted down with age.

    Args:
        params: of the attack.
        x: (B, C, H, W), whose shape and device the sum has.
    """

    def __init__(self, params: MomentumParams, x: Tensor) -> None:
        self._params = params
        self.sum = torch.zeros_like(x)
        self._frozen = torch.zeros(len(x), 1, 1, 1, dtype=torch.bool, device=x.device)

    def add(self, gradient: Tensor) -> None:
        """Take up the gradient of one more step; one of zero adds nothing, or freezes."""
        mean = gradient.abs().mean(dim=(1, 2, 3), keepdim=True)
        unit = torch.where(mean > 0, gradient / mean, 0.0)
        self.sum = self._params.decay * self.sum + unit
        if self._params.freeze_at_zero_gradient:
            self._frozen |= mean == 0
            self.sum = torch.where(self._frozen, 0.0, self.sum)


class LinfMomentumIterative(Attack[MomentumParams]):
    """MI-FGSM: g ← decay · g + gradient / mean |gradient|; a step along the sign of g.

    Source: arXiv:1710.06081, algorithm 1; Harry24k/adversarial-attacks-pytorch, mifgsm.py.
    Differs: a zero gradient adds nothing, where 0/0 would freeze the sample, unless
    `freeze_at_zero_gradient` asks for that.
    """

    uses_clean_gradient: ClassVar[bool] = True

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run."""
        return shorter_runs(self.params.steps)

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate; the first gradient is the clean one."""
        step_size = epsilon_value(self.params.step_size)
        x_adv, momentum = x, _Momentum(self.params, x)
        for step in range(self.params.steps):
            gradient = victim.gradient(x_adv, step=step) if step else victim.clean_gradient()
            momentum.add(gradient)
            x_adv = project_linf(x_adv + step_size * momentum.sum.sign(), x, radius)
        return x_adv


class LinfNesterovIterative(Attack[MomentumParams]):
    """NI-FGSM: as MI-FGSM, with the gradient at the point to which the momentum would lead.

    Gradients are taken at x_t + step_size · decay · g, so those are the points visited, as far as
    they lie in ball and box; of the iterates themselves only the last is judged.

    Source: arXiv:1908.06281, section 3.1; Harry24k/adversarial-attacks-pytorch, nifgsm.py.
    Differs: a zero gradient adds nothing, where 0/0 would freeze the sample, unless
    `freeze_at_zero_gradient` asks for that.
    """

    uses_clean_gradient: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate; without momentum yet, the first gradient is the clean one."""
        step_size, decay = epsilon_value(self.params.step_size), self.params.decay
        x_adv, momentum = x, _Momentum(self.params, x)
        for step in range(self.params.steps):
            if step:
                gradient = victim.gradient(x_adv + decay * step_size * momentum.sum)
            else:
                gradient = victim.clean_gradient()
            momentum.add(gradient)
            x_adv = project_linf(x_adv + step_size * momentum.sum.sign(), x, radius)
        return x_adv


class LinfVarianceTuning(Attack[VarianceTuningParams]):
    """VMI-FGSM: as MI-FGSM, with the gradient corrected by how it varied around the last iterate.

    v = mean gradient at `neighbours` points uniform in a cube of `spread` budgets around x_t, less
    the gradient at x_t. Neighbours are no iterates: they are not judged, nor cut to the box.

    Source: arXiv:2103.15571, algorithm 1; Harry24k/adversarial-attacks-pytorch, vmifgsm.py.
    Differs: the v after the last step, which nothing reads, is not computed; a zero gradient adds
    nothing, where 0/0 would freeze the sample, unless `freeze_at_zero_gradient` asks for that.
    """

    uses_clean_gradient: ClassVar[bool] = True

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run."""
        return shorter_runs(self.params.steps)

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate; the first gradient is the clean one."""
        params = self.params
        step_size = epsilon_value(params.step_size)
        x_adv, momentum, variance = x, _Momentum(params, x), torch.zeros_like(x)
        for step in range(params.steps):
            gradient = victim.gradient(x_adv, step=step) if step else victim.clean_gradient()
            momentum.add(gradient + variance)
            if step + 1 < params.steps:
                around = self._neighbours(x_adv, radius, ids, step)
                variance = victim.gradients_off_record(around).mean(dim=0) - gradient
            x_adv = project_linf(x_adv + step_size * momentum.sum.sign(), x, radius)
        return x_adv

    def _neighbours(self, x_adv: Tensor, radius: Tensor, ids: Tensor, step: int) -> Tensor:
        """(N, B, C, H, W) points around `x_adv`."""
        shape = tuple(x_adv.shape[1:])
        spread = self.params.spread * radius.view(-1, 1, 1, 1)
        return torch.stack(
            [
                x_adv + spread * (2.0 * uniform_noise(ids, shape, self.seed, "vmi", step, i) - 1.0)
                for i in range(self.params.neighbours)
            ]
        )
