"""The contract of attacks and the only place where they are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from overproof.core.registry import Params
from overproof.core.threat import Norm
from overproof.errors import ShapeError
from overproof.ml.attack.ball import distance, project
from overproof.ml.attack.inputs import class_indices, pixels
from overproof.ml.attack.passes import CleanPass, frozen
from overproof.ml.attack.record import TOLERANCE, Report
from overproof.ml.attack.victim import Victim
from overproof.ml.shapes import check_same_shape

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
        nearest: (B,) float32, distance of the nearest misclassified point that was visited,
            inside the budget or not; 0 where the clean image is one, infinite for none.
        finite: (B,) bool, all logits were finite.
        flat: (B,) bool, some gradient was zero in every pixel: the attack was blind there.
        reports: what runs of fewer steps would have ended with, by their number of steps.
        broken_by: (B,) int64, index of the part of a cascade that broke the sample, else -1.
        notes: what the attack had to do differently for this network, one line each.
        forward_passes, backward_passes: rows sent through the network; a clean pass that was
            given is not counted.
    """

    adversarial: Tensor
    clean_prediction: Tensor
    prediction: Tensor
    worst: Tensor
    distance: Tensor
    nearest: Tensor
    finite: Tensor
    flat: Tensor
    reports: Mapping[int, Report]
    broken_by: Tensor
    notes: tuple[str, ...]
    forward_passes: int
    backward_passes: int

    def rows(self, part: slice) -> AttackOutcome:
        """The outcome of some rows; it tells the passes of all."""
        return self.taken(torch.arange(len(self.worst))[part])

    def taken(self, part: Tensor) -> AttackOutcome:
        """The outcome of some rows, by their (M,) int64 numbers; it tells the passes of all."""
        part = part.to(self.worst.device)
        return replace(
            self,
            adversarial=self.adversarial[part],
            clean_prediction=self.clean_prediction[part],
            prediction=self.prediction[part],
            worst=self.worst[part],
            distance=self.distance[part],
            nearest=self.nearest[part],
            finite=self.finite[part],
            flat=self.flat[part],
            broken_by=self.broken_by[part],
            reports={
                steps: Report(report.prediction[part], report.worst[part])
                for steps, report in self.reports.items()
            },
        )

    @classmethod
    def joined(cls, outcomes: Sequence[AttackOutcome]) -> AttackOutcome:
        """The outcome of batches put one after another, on the device of the first."""
        first = outcomes[0]
        if len(outcomes) == 1:
            return first

        def cat(tensors: list[Tensor]) -> Tensor:
            return torch.cat([tensor.to(first.worst.device) for tensor in tensors])

        return cls(
            adversarial=cat([each.adversarial for each in outcomes]),
            clean_prediction=cat([each.clean_prediction for each in outcomes]),
            prediction=cat([each.prediction for each in outcomes]),
            worst=cat([each.worst for each in outcomes]),
            distance=cat([each.distance for each in outcomes]),
            nearest=cat([each.nearest for each in outcomes]),
            finite=cat([each.finite for each in outcomes]),
            flat=cat([each.flat for each in outcomes]),
            reports={
                steps: Report(
                    cat([each.reports[steps].prediction for each in outcomes]),
                    cat([each.reports[steps].worst for each in outcomes]),
                )
                for steps in first.reports
            },
            broken_by=cat([each.broken_by for each in outcomes]),
            notes=tuple(dict.fromkeys(line for each in outcomes for line in each.notes)),
            forward_passes=sum(each.forward_passes for each in outcomes),
            backward_passes=sum(each.backward_passes for each in outcomes),
        )


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
    # A minimum-norm attack looks for the nearest misclassified image, whatever the budget. Where
    # that one is too far, the clean image is judged instead.
    minimum_norm: ClassVar[bool] = False
    # Whether only samples that are right so far are attacked, so that others may be left out.
    survivors_only: ClassVar[bool] = False

    def __init__(self, params: P, *, seed: int) -> None:
        self.params = params
        self.seed = seed

    @property
    def shares_budgets(self) -> bool:
        """Whether one run with a budget of 0 tells the outcome at every budget; `at_budgets`."""
        return self.minimum_norm

    @property
    def averages_draws(self) -> bool:
        """Whether its gradients are means over draws, for networks whose outputs are random."""
        return False

    def parts(self, classes: int) -> Mapping[str, Attack[Any]]:
        """The parts of a cascade, for a network of so many classes; none for other attacks.

        Each attacks what the ones before left. There are as many for any number of classes.
        """
        return {}

    def part_names(self, classes: int) -> tuple[str, ...]:
        """Names of the parts that `broken_by` counts, for a network of so many classes."""
        return tuple(self.parts(classes))

    def substitutions(self, classes: int) -> tuple[str, ...]:
        """What a cascade does differently for a network of so many classes, one line each."""
        return ()

    @property
    def report_steps(self) -> tuple[int, ...]:
        """Shorter runs that this one contains, by their number of steps; see `AttackOutcome`."""
        return ()

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
            x: (B, C, H, W) in [0, 1], of any floating point dtype; not changed.
            y: (B,) true classes, or (B, K) one-hot rows.
            radius: budget in pixel units of [0, 1], one for all or (B,).
            ids: (B,) int64 numbers of the samples, which name their noise; 0 … B - 1 by default.
            clean: the clean pass of `model` over `x`, if it was made already.

        Raises:
            ShapeError: tensors do not fit together, or the network's output is no logits.
            ValueError: pixels outside [0, 1], labels that are no classes, or a negative radius.
        """
        x, y, radii, ids = self._checked(x, y, radius, ids)
        with frozen(model):
            if clean is None:
                clean = CleanPass(model, x, y, with_gradient=self.uses_clean_gradient)
            victim = self._victim(model, x, y, radii, clean)
            x_adv = self.perturb(victim, x, radii, ids).detach()
            check_same_shape(x_adv, x, what="adversarial images and their origins")
            if self.minimum_norm:
                too_far = distance(x_adv, x, self.norm) > radii
                x_adv = torch.where(too_far.view(-1, 1, 1, 1), x, x_adv)
            x_adv = project(x_adv, x, radii, self.norm)
            prediction = victim.predict(x_adv)
        return self._outcome(victim, x, x_adv, prediction, ~victim.broken)

    @final
    def at_budgets(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        radii: Sequence[float],
        ids: Tensor | None = None,
        clean: CleanPass | None = None,
    ) -> list[AttackOutcome]:
        """The outcomes at several budgets of one run; only for attacks that share budgets.

        The run does not stop at the first point inside a budget, so `nearest` and the distances
        are those that the attack can reach; the flags are those of runs with each budget alone.

        Args:
            model: as for `__call__`.
            x: as for `__call__`.
            y: as for `__call__`.
            radii: budgets, each for all images.
            ids: as for `__call__`.
            clean: as for `__call__`.

        Returns:
            One outcome for each budget; each tells the passes of the whole run.
        """
        if not self.shares_budgets:
            raise ValueError(f"{type(self).__name__} needs a run for each budget")
        x, y, zero, ids = self._checked(x, y, 0.0, ids)
        with frozen(model):
            if clean is None:
                clean = CleanPass(model, x, y, with_gradient=self.uses_clean_gradient)
            victim = self._victim(model, x, y, zero, clean)
            found = self.perturb(victim, x, zero, ids).detach()
            check_same_shape(found, x, what="adversarial images and their origins")
            found = found.clamp(0.0, 1.0)
            seen = victim.predict(found)
        away = distance(found, x, self.norm)
        return [
            self._outcome(
                victim,
                x,
                torch.where((away <= radius).view(-1, 1, 1, 1), found, x),
                torch.where(away <= radius, seen, clean.prediction),
                victim.nearest > radius + TOLERANCE,
            )
            for radius in radii
        ]

    def _checked(
        self, x: Tensor, y: Tensor, radius: float | Tensor, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = pixels(x)
        y = class_indices(y, len(x)).to(x.device)
        radii = torch.as_tensor(radius, dtype=torch.float32, device=x.device).expand(len(x))
        if len(x) and not float(radii.amin()) >= 0.0:
            raise ValueError(f"a budget must not be negative, not {float(radii.amin()):g}")
        if ids is None:
            ids = torch.arange(len(x), device=x.device)
        if tuple(ids.shape) != (len(x),):
            raise ShapeError(f"ids must be ({len(x)},), not {tuple(ids.shape)}")
        return x, y, radii, ids

    def _victim(
        self, model: nn.Module, x: Tensor, y: Tensor, radii: Tensor, clean: CleanPass
    ) -> Victim:
        return Victim(model, x, y, radii, clean, norm=self.norm, report_steps=self.report_steps)

    def _outcome(
        self, victim: Victim, x: Tensor, x_adv: Tensor, prediction: Tensor, worst: Tensor
    ) -> AttackOutcome:
        return AttackOutcome(
            adversarial=x_adv,
            clean_prediction=victim.clean.prediction,
            prediction=prediction,
            worst=worst,
            distance=distance(x_adv, x, self.norm),
            nearest=victim.nearest,
            finite=victim.finite,
            flat=victim.flat,
            broken_by=victim.broken_by,
            reports=victim.reports,
            notes=victim.notes,
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
