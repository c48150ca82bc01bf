"""FGSM: one step along the sign of the gradient."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from overproof.catalog.gradient_attacks import FgsmParams
from overproof.ml.attack.base import Attack
from overproof.ml.attack.victim import Victim


class LinfFastGradientSign(Attack[FgsmParams]):
    """x + radius · sign of the gradient of the cross entropy at x; sign(0) = 0.

    Source: arXiv:1412.6572, section 4; Harry24k/adversarial-attacks-pytorch, fgsm.py. Differs:
    the loss is a sum over the batch instead of a mean, which changes no sign.
    """

    uses_clean_gradient: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """One step of the size of the budget."""
        return x + radius.view(-1, 1, 1, 1) * victim.clean_gradient().sign()
