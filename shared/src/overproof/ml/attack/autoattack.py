"""AutoAttack: APGD, FAB and Square one after another, each on what the ones before left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from overproof.catalog.autoattack import (
    ApgdParams,
    AutoAttackParams,
    FabParams,
    PresetParams,
    SquareParams,
    TargetedApgdParams,
    TargetedFabParams,
)
from overproof.core.threat import Norm
from overproof.ml.attack.apgd import (
    L2Apgd,
    L2DlrApgd,
    L2MarginApgd,
    L2TargetedApgd,
    L2TargetedMarginApgd,
    LinfApgd,
    LinfDlrApgd,
    LinfMarginApgd,
    LinfTargetedApgd,
    LinfTargetedMarginApgd,
)
from overproof.ml.attack.base import Attack
from overproof.ml.attack.fab import L2Fab, L2TargetedFab, LinfFab, LinfTargetedFab
from overproof.ml.attack.square import LinfSquare
from overproof.ml.attack.square_l2 import L2Square
from overproof.ml.attack.victim import Victim

_RESTARTS_OF_PLUS = 5
_DRAWS_OF_RAND = 20


class LinfAutoAttack(Attack[AutoAttackParams]):
    """The cascade; a sample is robust if it survives every part.

    Each part is the attack of that name with the seed of the cascade, so that for the samples that
    reach it, it does what it does alone. Which part broke a sample is on record (`broken_by`, an
    index into `parts`). Where the network has too few classes for the DLR losses, their parts climb
    the bare margin instead, and a note says so.

    Source: arXiv:2003.01690, section 6; fra31/auto-attack, autoattack.py, and
    Harry24k/adversarial-attacks-pytorch, autoattack.py (preset `torchattacks`). Differs: the parts
    as in their own files; fewer classes than targets or losses need are no error.
    """

    survivors_only: ClassVar[bool] = True

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The misclassified image that the first successful part found, else `x`."""
        victim.keep_images()
        for line in self.substitutions(victim.classes):
            victim.note(line)
        for index, part in enumerate(self.parts(victim.classes).values()):
            survived = ~victim.broken
            part.perturb(victim, x, radius, ids)
            victim.credit(survived & victim.broken, index)
        # FAB may have found an image outside the budget only.
        return torch.where(victim.broken.view(-1, 1, 1, 1), victim.images, x)

    @property
    def averages_draws(self) -> bool:
        """In the version for networks whose outputs are random."""
        return self.params.version == "rand"

    def substitutions(self, classes: int) -> tuple[str, ...]:
        """Parts that stand in for others where there are too few classes."""
        return tuple(
            f"{name} in the place of DLR, which needs more classes than {classes}"
            for name in self._names(classes)
            if name.endswith("-margin")
        )

    def parts(self, classes: int) -> dict[str, Attack[Any]]:
        """The parts in their order, for a network that tells so many classes apart."""
        return {name: self._part(name) for name in self._names(classes)}

    def _names(self, classes: int) -> tuple[str, ...]:
        untargeted = "apgd-dlr" if classes >= 3 else "apgd-margin"
        targeted = "apgd-t" if classes >= 4 else "apgd-t-margin"
        match self.params.version:
            case "standard":
                return ("apgd-ce", targeted, "fab-t", "square")
            case "plus":
                return ("apgd-ce", untargeted, "fab", "square", targeted, "fab-t")
            case "rand":
                return ("apgd-ce", untargeted)

    def _part(self, name: str) -> Attack[Any]:
        return _PARTS[self.norm][name](self._part_params(name), seed=self.seed)

    def _part_params(self, name: str) -> PresetParams:
        params = self.params
        preset, steps, targets = params.preset, params.steps, params.targets
        restarts = _RESTARTS_OF_PLUS if params.version == "plus" else 1
        draws = _DRAWS_OF_RAND if params.version == "rand" else 1
        match name:
            case "apgd-ce" | "apgd-dlr" | "apgd-margin":
                return ApgdParams(
                    preset=preset, steps=steps, restarts=restarts, eot_iterations=draws
                )
            case "apgd-t" | "apgd-t-margin":
                return TargetedApgdParams(preset=preset, steps=steps, targets=targets)
            case "fab":
                return FabParams(preset=preset, steps=steps, restarts=restarts)
            case "fab-t":
                return TargetedFabParams(preset=preset, steps=steps, targets=targets)
            case _:
                return SquareParams(
                    preset=preset,
                    queries=params.queries,
                    rescale_schedule=params.rescale_schedule,
                    batch_shared_draws=params.batch_shared_draws,
                )


class L2AutoAttack(LinfAutoAttack):
    """The cascade of the same parts in L2."""

    norm: ClassVar[Norm] = Norm.L2


_PARTS: Mapping[Norm, Mapping[str, Callable[..., Attack[Any]]]] = {
    Norm.LINF: {
        "apgd-ce": LinfApgd,
        "apgd-dlr": LinfDlrApgd,
        "apgd-margin": LinfMarginApgd,
        "apgd-t": LinfTargetedApgd,
        "apgd-t-margin": LinfTargetedMarginApgd,
        "fab": LinfFab,
        "fab-t": LinfTargetedFab,
        "square": LinfSquare,
    },
    Norm.L2: {
        "apgd-ce": L2Apgd,
        "apgd-dlr": L2DlrApgd,
        "apgd-margin": L2MarginApgd,
        "apgd-t": L2TargetedApgd,
        "apgd-t-margin": L2TargetedMarginApgd,
        "fab": L2Fab,
        "fab-t": L2TargetedFab,
        "square": L2Square,
    },
}
