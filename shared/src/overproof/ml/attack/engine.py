"""Runs many attack cells on one victim, sharing whatever changes no number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from overproof.core.canonical import canonical_json
from overproof.errors import ShapeError
from overproof.ml.attack.base import Attack, AttackOutcome
from overproof.ml.attack.inputs import logits_of
from overproof.ml.attack.passes import CleanPass, frozen
from overproof.ml.attack.record import Report
from overproof.ml.train.evaluation import pixels_of


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
        unchanged = self.radius > 0 and not bool((self.distance > 0).any())
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


class CellEngine:
    """Attacks one victim in several cells; a `Resumable` with one step a batch and group of cells.

    One clean pass a batch serves all cells, with its gradient where FGSM or BIM is among them; the
    first batch is looked at twice, to find networks whose outputs are random.
    Budgets of an attack that looks for the nearest adversarial image come out of one run. On a GPU,
    cells that differ only in their budgets run stacked in one batch, since there a launch costs
    more than its rows. On a CPU stacking saves nothing, and without it every tensor has the shape
    it would have if the cell were alone: an outcome is the same bytes whichever cells are in the
    job.

    Args:
        model: pixels in [0, 1] → logits, on `device`.
        images: (N, C, H, W) uint8, any device.
        labels: (N,) int64.
        cells: what to run.
        device: where to compute.
        rows_at_once: most rows sent through the network at once; bounds memory.

    Raises:
        ShapeError: images and labels differ in number, or there are none.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        cells: Sequence[Cell],
        *,
        device: torch.device,
        rows_at_once: int,
    ) -> None:
        if not 0 < len(images) == len(labels):
            raise ShapeError(f"{len(images)} images and {len(labels)} labels cannot be attacked")
        self._model = model
        self._images = images.to(device)
        self._labels = labels.to(device)
        self._cells = tuple(cells)
        self._groups = _grouped(self._cells, stack=device.type != "cpu")
        largest = max((len(group) for group in self._groups if not self._shared(group)), default=1)
        self._batch = max(1, rows_at_once // largest)
        self._with_gradient = any(cell.attack.uses_clean_gradient for cell in self._cells)
        self._clean: tuple[int, CleanPass] | None = None

        count, cells_count = len(images), len(self._cells)
        self._clean_prediction = torch.zeros(count, dtype=torch.int64)
        self._classes = torch.zeros((), dtype=torch.int64)
        self._probabilities = torch.ones((), dtype=torch.bool)
        self._random = torch.zeros((), dtype=torch.bool)
        self._stored = {
            "prediction": torch.zeros(cells_count, count, dtype=torch.int64),
            "distance": torch.zeros(cells_count, count, dtype=torch.float32),
            "nearest": torch.zeros(cells_count, count, dtype=torch.float32),
            "worst": torch.zeros(cells_count, count, dtype=torch.bool),
            "finite": torch.zeros(cells_count, count, dtype=torch.bool),
            "flat": torch.zeros(cells_count, count, dtype=torch.bool),
            "broken_by": torch.zeros(cells_count, count, dtype=torch.int64),
        }
        self._reports = {
            (cell, steps): Report(
                torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool)
            )
            for cell in range(cells_count)
            for steps in self._cells[cell].attack.report_steps
        }
        self._passes = torch.zeros(cells_count, 2, dtype=torch.int64)
        self._notes: list[tuple[str, ...]] = [()] * cells_count

    @property
    def total_steps(self) -> int:
        """Batches of images times groups of cells."""
        return -(-len(self._images) // self._batch) * len(self._groups)

    def step(self, index: int) -> Mapping[str, float]:
        """Attack one batch of images in one group of cells."""
        batch, turn = divmod(index, len(self._groups))
        group = self._groups[turn]
        rows = slice(batch * self._batch, (batch + 1) * self._batch)
        x, y = pixels_of(self._images[rows]), self._labels[rows]
        ids = torch.arange(len(self._images), device=x.device)[rows]
        clean = self._clean_pass(batch, x, y)

        outcomes = self._attack(group, x, y, ids, clean)
        self._clean_prediction[rows] = clean.prediction.cpu()
        self._classes.fill_(clean.logits.shape[1])
        self._probabilities &= _like_probabilities(clean.logits).cpu()
        for cell, outcome in zip(group, outcomes, strict=True):
            for name, stored in self._stored.items():
                stored[cell, rows] = getattr(outcome, name).cpu()
            for steps, report in outcome.reports.items():
                self._reports[cell, steps].prediction[rows] = report.prediction.cpu()
                self._reports[cell, steps].worst[rows] = report.worst.cpu()
            passes = torch.tensor([outcome.forward_passes, outcome.backward_passes])
            self._passes[cell] += passes // len(group)
            self._notes[cell] = tuple(dict.fromkeys((*self._notes[cell], *outcome.notes)))
        return {"robust": float(outcomes[-1].worst.float().mean())}

    def outcomes(self) -> list[CellOutcome]:
        """What every cell did, in the order of the cells; after the last step."""
        return [
            CellOutcome(
                label=self._labels.cpu(),
                clean_prediction=self._clean_prediction,
                adversarial_prediction=self._stored["prediction"][i],
                worst=self._stored["worst"][i],
                distance=self._stored["distance"][i],
                nearest=self._stored["nearest"][i],
                finite=self._stored["finite"][i],
                flat=self._stored["flat"][i],
                broken_by=self._stored["broken_by"][i],
                forward_passes=int(self._passes[i, 0]),
                backward_passes=int(self._passes[i, 1]),
                radius=cell.radius,
                parts=cell.attack.part_names(int(self._classes)),
                reports={
                    steps: report
                    for (number, steps), report in self._reports.items()
                    if number == i
                },
                notes=self._notes[i],
                classes=int(self._classes),
                probabilities=bool(self._probabilities),
                random=bool(self._random) and not cell.attack.averages_draws,
            )
            for i, cell in enumerate(self._cells)
        ]

    def state(self) -> dict[str, Tensor]:
        """Outcomes so far, for all cells."""
        state = {name: tensor.clone() for name, tensor in self._tensors().items()}
        notes = canonical_json([list(lines) for lines in self._notes])
        state["notes"] = torch.frombuffer(bytearray(notes), dtype=torch.uint8)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up outcomes that `state` returned."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        notes = json.loads(bytes(state["notes"].tolist()))
        self._notes = [tuple(lines) for lines in notes]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {
            **self._stored,
            "clean_prediction": self._clean_prediction,
            "classes": self._classes,
            "probabilities": self._probabilities,
            "random": self._random,
            "passes": self._passes,
        }
        for (cell, steps), report in self._reports.items():
            tensors[f"report.{cell}.{steps}.prediction"] = report.prediction
            tensors[f"report.{cell}.{steps}.worst"] = report.worst
        return tensors

    def _shared(self, group: tuple[int, ...]) -> bool:
        return self._cells[group[0]].attack.shares_budgets

    def _attack(
        self, group: tuple[int, ...], x: Tensor, y: Tensor, ids: Tensor, clean: CleanPass
    ) -> list[AttackOutcome]:
        """The outcomes of a group of cells on one batch; each tells the passes of all of them."""
        attack, model = self._cells[group[0]].attack, self._model
        radii = [self._cells[cell].radius for cell in group]
        if self._shared(group):
            return attack.at_budgets(model, x, y, radii=radii, ids=ids, clean=clean)
        times = len(group)
        outcome = attack(
            model,
            x.repeat(times, 1, 1, 1),
            y.repeat(times),
            radius=torch.tensor(radii, device=x.device).repeat_interleave(len(x)),
            ids=ids.repeat(times),
            clean=clean.repeated(times),
        )
        return [outcome.rows(slice(i * len(x), (i + 1) * len(x))) for i in range(times)]

    def _clean_pass(self, batch: int, x: Tensor, y: Tensor) -> CleanPass:
        if self._clean is None or self._clean[0] != batch:
            with frozen(self._model):
                clean = CleanPass(self._model, x, y, with_gradient=self._with_gradient)
                if batch == 0:
                    self._random |= _differs(self._model, x, clean.logits)
            self._clean = (batch, clean)
        return self._clean[1]


def _differs(model: nn.Module, x: Tensor, logits: Tensor) -> bool:
    """Whether a second look shows other logits, by more than kernels differ from run to run."""
    with torch.no_grad():
        again = logits_of(model, x)
    return not torch.allclose(again, logits, rtol=1e-3, atol=1e-4, equal_nan=True)


def _like_probabilities(logits: Tensor) -> Tensor:
    """Whether every row could be the output of a softmax; a bool without dimensions."""
    sums_to_one = (logits.sum(dim=1) - 1.0).abs() < 1e-4
    return ((logits >= 0.0).all(dim=1) & sums_to_one).all()


def _grouped(cells: Sequence[Cell], *, stack: bool) -> list[tuple[int, ...]]:
    """Indices of cells that run together: those of one attack, whatever their budgets.

    Where cells are not stacked these are only cells of attacks that share budgets.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, cell in enumerate(cells):
        attack = cell.attack
        apart = () if stack or attack.shares_budgets else (i,)
        key = (type(attack), attack.params, attack.seed, *apart)
        groups.setdefault(key, []).append(i)
    return [tuple(group) for group in groups.values()]
