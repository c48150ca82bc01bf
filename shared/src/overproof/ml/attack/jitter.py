"""Jitter: signed steps that push noisy, rescaled probabilities away from the true class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from overproof.catalog.gradient_attacks import JitterParams
from overproof.core.threat import epsilon_value
from overproof.ml.attack.ball import project_linf
from overproof.ml.attack.base import Attack
from overproof.ml.attack.noise import normal_noise
from overproof.ml.attack.passes import Loss
from overproof.ml.attack.steps import random_start, shorter_runs
from overproof.ml.attack.victim import Victim


class LinfJitter(Attack[JitterParams]):
    """Ascends ‖softmax(scale · z / ‖z‖∞) + noise − one-hot(y)‖² / K by signed steps.

    Noise is N(0, std²) for each class, fresh at every step. The loss of a fooled sample is divided
    by its distance from the image, so that small perturbations are preferred once it is fooled.
    Where the network is sure of itself the noise outweighs the signal and the steps are mostly
    random: a weak attack, whose numbers alone say little about robustness.

    Source: arXiv:2105.10304, section 4; Harry24k/adversarial-attacks-pytorch, jitter.py. Differs:
    noise by sample instead of from a shared generator; logits that are all 0 stay 0, where 0/0
    would freeze the sample.
    """

    @property
    def report_steps(self) -> tuple[int, ...]:
        """The paper's shorter run."""
        return shorter_runs(self.params.steps)

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The last iterate, from a uniform random point of the ball."""
        params = self.params
        step_size = epsilon_value(params.step_size)
        x_adv = x
        if params.random_start:
            x_adv = random_start(x, radius, ids, self.seed, "jitter start", norm=self.norm)
        for step in range(params.steps):
            noise = params.std * normal_noise(
                ids, (victim.classes,), self.seed, "jitter noise", step
            )
            look = victim.look(x_adv, _loss(params.scale, noise), step=step)
            fooled = look.logits.argmax(dim=1) != victim.labels
            ascent = _nearer(look.gradient, look.loss, x_adv - x, fooled)
            x_adv = project_linf(x_adv + step_size * ascent.sign(), x, radius)
        return x_adv


def _loss(scale: float, noise: Tensor) -> Loss:
    def of_each(logits: Tensor, y: Tensor) -> Tensor:
        largest = logits.abs().amax(dim=1, keepdim=True)
        scaled = logits / torch.where(largest > 0, largest, 1.0)
        jittered = (scale * scaled).softmax(dim=1) + noise
        target = functional.one_hot(y, logits.shape[1]).to(logits.dtype)
        return (jittered - target).square().mean(dim=1)

    return of_each


def _nearer(gradient: Tensor, loss: Tensor, delta: Tensor, fooled: Tensor) -> Tensor:
    """A positive multiple of the gradient of loss / ‖delta‖∞, for fooled samples that moved.

    By the quotient rule it is along gradient · ‖delta‖∞ − loss · ∂‖delta‖∞, where ties for the
    largest pixel share their part evenly.

    Args:
        gradient: (B, C, H, W), of the loss.
        loss: (B,).
        delta: (B, C, H, W), x_adv - x.
        fooled: (B,) bool; other rows keep their gradient.
    """
    size = delta.abs()
    largest = size.amax(dim=(1, 2, 3), keepdim=True)
    ties = size == largest
    slope = delta.sign() * ties / ties.sum(dim=(1, 2, 3), keepdim=True)
    quotient = gradient * largest - loss.view(-1, 1, 1, 1) * slope
    return torch.where(fooled.view(-1, 1, 1, 1) & (largest > 0), quotient, gradient)
