"""The contract of attacks and the only place where they are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from overproof.core.registry import Params
from overproof.core.threat import Norm
from overproof.errors import ShapeError
from overproof.ml.attack.ball import linf_distance, project_linf
from overproof.ml.attack.victim import CleanPass, Victim, frozen
from overproof.ml.shapes import check_images, check_same_shape, check_unit_range

P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack did to a batch; all tensors on the device of the images.

    Three readings of robustness come out of one run:

    - S1, last iterate: `prediction == y`, over all samples.
    - S2, worst case: `worst`, clean-correct and correct at every iterate.
    - S3, last iterate of clean-correct samples: `prediction == y` and `clean_prediction == y`.

    Always S2 <= S3 <= S1.

    Attributes:
        adversarial: (B, C, H, W) float32 in [0, 1] and in the threat ball.
        clean_prediction: (B,) int64.
        prediction: (B,) int64, at `adversarial`.
        worst: (B,) bool, correct at the clean image and at every allowed point that was visited.
        distance: (B,) float32, of `adversarial` from the clean image, in the norm of the attack.
        finite: (B,) bool, all logits were finite.
        flat: (B,) bool, some gradient was zero in every pixel: the attack was blind there.
        forward_passes, backward_passes: rows sent through the network; a clean pass that was
            given is not counted.
    """

    adversarial: Tensor
    clean_prediction: Tensor
    prediction: Tensor
    worst: Tensor
    distance: Tensor
    finite: Tensor
    flat: Tensor
    forward_passes: int
    backward_passes: int


class Attack(ABC, Generic[P]):
    """An untargeted attack: authors write `perturb`, callers use the object as a function.

    `__call__` checks, freezes, projects and judges, so that no attack can leave its ball, forget
    eval mode or invent its own idea of success. The result for an image depends on nothing but
    the image, its label and id, the radius, the parameters and the seed.

    Args:
        params: parameters of the attack as in the catalog.
        seed: of all its random draws.
    """

    norm: ClassVar[Norm] = Norm.LINF
    uses_clean_gradient: ClassVar[bool] = False  # whether a shared clean pass should have it

    def __init__(self, params: P, *, seed: int) -> None:
        self.params = params
        self.seed = seed

    @final
    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        radius: float | Tensor,
        ids: Tensor | None = None,
        clean: CleanPass | None = None,
    ) -> AttackOutcome:
        """Attack a batch of images.

        Args:
            model: pixels in [0, 1] (B, C, H, W) → logits (B, K). It must treat samples one by one
                in eval mode. Its mode, flags and gradients are left as they were.
            x: (B, C, H, W) float32 in [0, 1]; not changed.
            y: (B,) int64 true classes.
            radius: budget in pixel units of [0, 1], one for all or (B,).
            ids: (B,) int64 numbers of the samples, which name their noise; 0 … B - 1 by default.
            clean: the clean pass of `model` over `x`, if it was made already.

        Raises:
            ShapeError: tensors do not fit together.
            ValueError: pixels outside [0, 1], or a negative radius.
        """
        check_images(x)
        check_unit_range(x)
        radii = torch.as_tensor(radius, dtype=torch.float32, device=x.device).expand(len(x))
        if len(x) and not float(radii.amin()) >= 0.0:
            raise ValueError(f"a budget must not be negative, not {float(radii.amin()):g}")
        if ids is None:
            ids = torch.arange(len(x), device=x.device)
        for name, tensor in (("labels", y), ("ids", ids)):
            if tuple(tensor.shape) != (len(x),):
                raise ShapeError(f"{name} must be ({len(x)},), not {tuple(tensor.shape)}")

        with frozen(model):
            if clean is None:
                clean = CleanPass(model, x, y, with_gradient=self.uses_clean_gradient)
            victim = Victim(model, x, y, radii, clean)
            x_adv = self.perturb(victim, x, radii, ids).detach()
            check_same_shape(x_adv, x, what="adversarial images and their origins")
            x_adv = project_linf(x_adv, x, radii)
            prediction = victim.predict(x_adv)
        return AttackOutcome(
            adversarial=x_adv,
            clean_prediction=clean.prediction,
            prediction=prediction,
            worst=~victim.broken,
            distance=linf_distance(x_adv, x),
            finite=victim.finite,
            flat=victim.flat,
            forward_passes=victim.forward_passes,
            backward_passes=victim.backward_passes,
        )

    @abstractmethod
    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """Adversarial candidates for `x`.

        Args:
            victim: the network with the true labels; ask it for gradients and predictions.
            x: (B, C, H, W) float32 in [0, 1]; must not be changed in place.
            radius: (B,) float32, budget of each row.
            ids: (B,) int64, for `noise.uniform_noise`.

        Returns:
            (B, C, H, W); the caller projects it to the ball and the box.
        """
