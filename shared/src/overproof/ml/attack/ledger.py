"""What is known so far of every cell of an engine; all that a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from overproof.core.canonical import canonical_json
from overproof.ml.attack.base import AttackOutcome
from overproof.ml.attack.cells import Cell, CellOutcome
from overproof.ml.attack.passes import CleanPass
from overproof.ml.attack.record import Report


class Ledger:
    """Outcomes of cells by sample, on the CPU.

    Args:
        cells: in the order of the outcomes.
        labels: (N,) int64.
    """

    def __init__(self, cells: Sequence[Cell], labels: Tensor) -> None:
        self._cells = tuple(cells)
        self._labels = labels.cpu()
        shape = (len(self._cells), len(labels))
        count = len(labels)
        self._by_cell = {
            "prediction": torch.zeros(shape, dtype=torch.int64),
            "distance": torch.zeros(shape, dtype=torch.float32),
            "nearest": torch.zeros(shape, dtype=torch.float32),
            "worst": torch.zeros(shape, dtype=torch.bool),
            "finite": torch.zeros(shape, dtype=torch.bool),
            "flat": torch.zeros(shape, dtype=torch.bool),
            "broken_by": torch.zeros(shape, dtype=torch.int64),
        }
        self._reports = {
            (cell, steps): Report(
                torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool)
            )
            for cell in range(len(self._cells))
            for steps in self._cells[cell].attack.report_steps
        }
        self._passes = torch.zeros(len(self._cells), 2, dtype=torch.int64)
        self._notes: list[tuple[str, ...]] = [()] * len(self._cells)
        self._clean_prediction = torch.zeros(count, dtype=torch.int64)
        self._probabilities = torch.ones((), dtype=torch.bool)
        self._random = torch.zeros((), dtype=torch.bool)
        self._logits = torch.zeros(0, 0)  # (N, K) once there was a clean pass

    @property
    def classes(self) -> int:
        """How many the network tells apart; 0 before the first clean pass."""
        return self._logits.shape[1]

    def take_clean(self, rows: slice, clean: CleanPass, *, random: bool) -> None:
        """Put the clean pass over some samples on record.

        Args:
            rows: their numbers.
            clean: over them.
            random: whether a second look showed something else.
        """
        logits = clean.logits.cpu()
        if self.classes == 0:
            self._logits = torch.zeros(len(self._labels), logits.shape[1])
        self._logits[rows] = logits
        self._clean_prediction[rows] = clean.prediction.cpu()
        self._probabilities &= _like_probabilities(logits)
        self._random |= random
        right = self._clean_prediction[rows] == self._labels[rows]
        for cell in self._surviving():
            self._by_cell["prediction"][cell, rows] = self._clean_prediction[rows]
            self._by_cell["nearest"][cell, rows] = torch.where(right, torch.inf, 0.0)
            self._by_cell["worst"][cell, rows] = right
            self._by_cell["finite"][cell, rows] = clean.finite.cpu()
            self._by_cell["broken_by"][cell, rows] = -1

    def clean(self, rows: Tensor, device: torch.device) -> CleanPass:
        """The clean pass over some samples, by their (M,) int64 numbers on the CPU."""
        return CleanPass.known(self._logits[rows].to(device))

    def reached(self, cell: int, part: int) -> Tensor:
        """(M,) int64 samples that a part of a cascade attacks: right till then.

        The same before, during and after its work, so that a resumed run finds the same ones.
        """
        broken_by = self._by_cell["broken_by"][cell]
        right = self._clean_prediction == self._labels
        return (right & ((broken_by < 0) | (broken_by >= part))).nonzero().view(-1)

    def take(self, cell: int, rows: slice | Tensor, outcome: AttackOutcome) -> None:
        """Put what an attack did to some samples on record, in the place of what was there."""
        for name, stored in self._by_cell.items():
            stored[cell, rows] = getattr(outcome, name).cpu()
        for steps, report in outcome.reports.items():
            self._reports[cell, steps].prediction[rows] = report.prediction.cpu()
            self._reports[cell, steps].worst[rows] = report.worst.cpu()

    def take_part(self, cell: int, rows: Tensor, outcome: AttackOutcome, part: int) -> None:
        """Add what a part of a cascade did to samples that reached it."""
        stored = {name: values[cell] for name, values in self._by_cell.items()}
        broken = ~outcome.worst.cpu()
        fallen = rows[broken]
        for name in ("prediction", "distance"):
            stored[name][fallen] = getattr(outcome, name).cpu()[broken]
        stored["worst"][fallen] = False
        stored["broken_by"][fallen] = part
        stored["nearest"][rows] = torch.minimum(stored["nearest"][rows], outcome.nearest.cpu())
        stored["finite"][rows] &= outcome.finite.cpu()
        stored["flat"][rows] |= outcome.flat.cpu()

    def charge(self, cell: int, forward: int, backward: int) -> None:
        """Add rows that went through the network for a cell."""
        self._passes[cell] += torch.tensor([forward, backward])

    def note(self, cell: int, lines: Sequence[str]) -> None:
        """Add lines to the notes of a cell, each once."""
        self._notes[cell] = tuple(dict.fromkeys((*self._notes[cell], *lines)))

    def outcomes(self) -> list[CellOutcome]:
        """What every cell did, in the order of the cells."""
        return [self._outcome(i, cell) for i, cell in enumerate(self._cells)]

    def state(self) -> dict[str, Tensor]:
        """All of it; copies."""
        state = {name: tensor.clone() for name, tensor in self._tensors().items()}
        notes = canonical_json([list(lines) for lines in self._notes])
        state["notes"] = torch.frombuffer(bytearray(notes), dtype=torch.uint8)
        state["logits"] = self._logits.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        notes = json.loads(bytes(state["notes"].tolist()))
        self._notes = [tuple(lines) for lines in notes]
        self._logits = state["logits"].clone()

    def _surviving(self) -> list[int]:
        return [i for i, cell in enumerate(self._cells) if cell.attack.survivors_only]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {
            **self._by_cell,
            "clean_prediction": self._clean_prediction,
            "probabilities": self._probabilities,
            "random": self._random,
            "passes": self._passes,
        }
        for (cell, steps), report in self._reports.items():
            tensors[f"report.{cell}.{steps}.prediction"] = report.prediction
            tensors[f"report.{cell}.{steps}.worst"] = report.worst
        return tensors

    def _outcome(self, number: int, cell: Cell) -> CellOutcome:
        stored = {name: values[number] for name, values in self._by_cell.items()}
        return CellOutcome(
            label=self._labels,
            clean_prediction=self._clean_prediction,
            adversarial_prediction=stored["prediction"],
            worst=stored["worst"],
            distance=stored["distance"],
            nearest=stored["nearest"],
            finite=stored["finite"],
            flat=stored["flat"],
            broken_by=stored["broken_by"],
            forward_passes=int(self._passes[number, 0]),
            backward_passes=int(self._passes[number, 1]),
            radius=cell.radius,
            parts=cell.attack.part_names(self.classes),
            reports={
                steps: report for (owner, steps), report in self._reports.items() if owner == number
            },
            notes=self._notes[number],
            classes=self.classes,
            probabilities=bool(self._probabilities),
            random=bool(self._random) and not cell.attack.averages_draws,
        )


def _like_probabilities(logits: Tensor) -> Tensor:
    """Whether every row could be the output of a softmax; a bool without dimensions."""
    sums_to_one = (logits.sum(dim=1) - 1.0).abs() < 1e-4
    return ((logits >= 0.0).all(dim=1) & sums_to_one).all()
