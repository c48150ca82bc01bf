"""One attack at one budget, and what it did to the test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from overproof.ml.attack.base import Attack
from overproof.ml.attack.record import Report


@dataclass(frozen=True)
class Cell:
    """One attack at one budget, in pixel units of [0, 1]."""

    attack: Attack[Any]
    radius: float


@dataclass(frozen=True)
class CellOutcome:
    """What one cell did to every image of the test set, in its order; tensors on the CPU.

    The readings S1, S2 and S3 are those of `AttackOutcome`.

    Attributes:
        label, clean_prediction, adversarial_prediction: (N,) int64; the last iterate's.
        worst: (N,) bool, correct at the clean image and at every iterate.
        distance: (N,) float32, of the last iterate from the clean image.
        nearest: (N,) float32, of the nearest misclassified point that was visited, else infinite.
        finite, flat: (N,) bool, as in `AttackOutcome`.
        broken_by: (N,) int64, index into `parts` of what broke the sample, -1 for none.
        parts: names of the parts of a cascade, empty for other attacks.
        reports: what runs of fewer steps would have ended with.
        notes: what the attack had to do differently for this network.
        classes: that the network tells apart.
        probabilities: all of its clean outputs are not negative and sum to 1.
        random: two looks at one image differ, and the attack does not average over draws.
        forward_passes, backward_passes: rows, without the shared clean pass; of a run that several
            cells share, an equal share.
    """

    label: Tensor
    clean_prediction: Tensor
    adversarial_prediction: Tensor
    worst: Tensor
    distance: Tensor
    nearest: Tensor
    finite: Tensor
    flat: Tensor
    broken_by: Tensor
    forward_passes: int
    backward_passes: int
    radius: float
    parts: tuple[str, ...] = ()
    reports: Mapping[int, Report] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    classes: int = 0
    probabilities: bool = False
    random: bool = False

    def counts(self) -> dict[str, int]:
        """Samples in all, correct when clean, robust by each reading, with a flat gradient."""
        return {
            "total": len(self.label),
            "clean_correct": int(self._clean.sum()),
            **self._robust(self.adversarial_prediction, self.worst),
            "flat_gradients": int(self.flat.sum()),
        }

    def shorter_runs(self) -> dict[str, dict[str, int]]:
        """Number of steps → robust samples by each reading after so many."""
        return {
            str(steps): self._robust(report.prediction, report.worst)
            for steps, report in self.reports.items()
        }

    def broken_by_part(self) -> dict[str, int]:
        """Part of a cascade → samples that it broke and no part before it."""
        return {name: int((self.broken_by == i).sum()) for i, name in enumerate(self.parts)}

    def fault(self) -> str | None:
        """Why the numbers mean nothing, None when they do mean something."""
        if not bool(self.finite.all()):
            return f"non-finite logits on {int((~self.finite).sum())} samples"
        if self.random:
            return "random outputs: gradients must be averaged over draws (AutoAttack's `rand`)"
        tried = self.radius > 0 and bool(self._clean.any())
        unchanged = tried and not bool((self.distance > 0).any())
        if unchanged and bool(self.flat[self._clean].all()) and not bool(self._broken.any()):
            return "unchanged adversarial images: every gradient was zero"
        return None

    @property
    def _clean(self) -> Tensor:
        return self.clean_prediction == self.label

    @property
    def _broken(self) -> Tensor:
        return self._clean & ~self.worst

    def _robust(self, prediction: Tensor, worst: Tensor) -> dict[str, int]:
        last = prediction == self.label
        return {
            "robust_s1": int(last.sum()),
            "robust_s2": int(worst.sum()),
            "robust_s3": int((last & self._clean).sum()),
        }
