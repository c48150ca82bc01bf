"""Carlini & Wagner's margin loss: ascended inside an L∞ ball, and traded for distance in L2."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from overproof.catalog.gradient_attacks import L2CwParams, LinfCwParams
from overproof.core.threat import Norm, epsilon_value
from overproof.ml.attack.base import Attack
from overproof.ml.attack.losses import margin
from overproof.ml.attack.passes import Loss
from overproof.ml.attack.steps import ascend, random_start, shorter_runs
from overproof.ml.attack.victim import Victim

# Adam's moments and the guard of its quotient, as published (arXiv:1412.6980).
_BETA_1, _BETA_2, _ADAM_TINY = 0.9, 0.999, 1e-8
# Keeps pixels of exactly 0 and 1 movable: their place in tanh space would be infinite.
_SHRINK = 1.0 - 1e-6


class LinfCarliniWagner(Attack[LinfCwParams]):
    """Signed steps on the margin up to `confidence`, from a uniform random point of the ball.

    A sample is pushed on after it is fooled, until a wrong class leads by `confidence`; then its
    gradient is zero and it stays. This is the attack that the tables of DD-RobustBench call CW.

    Source: DD-RobustBench, attack_utils.py. Differs: the runner-up is the largest wrong logit even
    if all of them are below -1000; noise by sample; the test set stays in pixel space throughout.
    """

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run."""
        return shorter_runs(self.params.steps)

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate."""
        params = self.params
        start = x
        if params.random_start:
            start = random_start(x, radius, ids, self.seed, "cw start", norm=self.norm)
        return ascend(
            victim,
            start,
            x,
            radius,
            norm=self.norm,
            steps=params.steps,
            step_size=epsilon_value(params.step_size),
            loss=_up_to(params.confidence),
        )


def _up_to(confidence: float) -> Loss:
    def total(logits: Tensor, y: Tensor) -> Tensor:
        return -(confidence - margin(logits, y)).clamp(min=0.0).sum()

    return total


class L2CarliniWagner(Attack[L2CwParams]):
    """The nearest misclassified image that Adam finds on ‖x' − x‖² + c · max(−margin, 0).

    x' = (tanh w + 1) / 2 keeps the search in the pixel box. c starts at `constant`; each further
    search step halves the interval to a c that failed, or multiplies c by 10 where none succeeded
    yet. The nearest image over all steps is returned, for each sample on its own.

    Source: arXiv:1608.04644, section VI; Harry24k/adversarial-attacks-pytorch, cw.py (defaults).
    Differs from the latter: the margin is right for negative logits too; no sample's search ends
    because the batch's sum stopped falling; pixels of exactly 0 and 1 can move.
    """

    norm: ClassVar[Norm] = Norm.L2
    minimum_norm: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The nearest misclassified image, the clean one where none was found."""
        params = self.params
        victim.keep_images()
        constant = torch.full((len(x),), params.constant, device=x.device)
        low = torch.zeros_like(constant)
        high = torch.full_like(constant, torch.inf)
        for _ in range(params.search_steps):
            succeeded = self._descend(victim, x, constant)
            high = torch.where(succeeded, constant, high)
            low = torch.where(succeeded, low, constant)
            constant = torch.where(high.isfinite(), (low + high) / 2.0, 10.0 * constant)
        return victim.images

    def _descend(self, victim: Victim, x: Tensor, constant: Tensor) -> Tensor:
        """One run of Adam; (B,) bool, whether some iterate was misclassified."""
        w = ((2.0 * x - 1.0) * _SHRINK).atanh()
        first, second = torch.zeros_like(w), torch.zeros_like(w)
        succeeded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for step in range(1, self.params.steps + 1):
            squashed = w.tanh()
            x_adv = (squashed + 1.0) / 2.0
            look = victim.look(x_adv, _shortfall)
            succeeded |= look.logits.argmax(dim=1) != victim.labels
            by_pixels = 2.0 * (x_adv - x) + constant.view(-1, 1, 1, 1) * look.gradient
            gradient = by_pixels * (1.0 - squashed.square()) / 2.0
            first = _BETA_1 * first + (1.0 - _BETA_1) * gradient
            second = _BETA_2 * second + (1.0 - _BETA_2) * gradient.square()
            scale = (second / (1.0 - _BETA_2**step)).sqrt() + _ADAM_TINY
            w = w - self.params.learning_rate * first / (1.0 - _BETA_1**step) / scale
        return succeeded


def _shortfall(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) by how much the true class leads; 0 once the sample is fooled."""
    return (-margin(logits, y)).clamp(min=0.0)
