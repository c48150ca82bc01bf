"""Runs many attack cells on one victim, sharing whatever changes no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overproof.errors import ShapeError
from overproof.ml.attack.base import Attack
from overproof.ml.attack.victim import CleanPass, frozen
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
        finite, flat: (N,) bool, as in `AttackOutcome`.
        forward_passes, backward_passes: rows, without the shared clean pass.
    """

    label: Tensor
    clean_prediction: Tensor
    adversarial_prediction: Tensor
    worst: Tensor
    distance: Tensor
    finite: Tensor
    flat: Tensor
    forward_passes: int
    backward_passes: int
    radius: float

    def counts(self) -> dict[str, int]:
        """Samples in all, correct when clean, robust by each reading, with a flat gradient."""
        clean = self.clean_prediction == self.label
        last = self.adversarial_prediction == self.label
        return {
            "total": len(self.label),
            "clean_correct": int(clean.sum()),
            "robust_s1": int(last.sum()),
            "robust_s2": int(self.worst.sum()),
            "robust_s3": int((last & clean).sum()),
            "flat_gradients": int(self.flat.sum()),
        }

    def fault(self) -> str | None:
        """Why the numbers mean nothing, None when they do mean something."""
        if not bool(self.finite.all()):
            return f"non-finite logits on {int((~self.finite).sum())} samples"
        if self.radius > 0 and not bool((self.distance > 0).any()):
            return "unchanged adversarial images: every gradient was zero"
        return None


class CellEngine:
    """Attacks one victim in several cells; a `Resumable` with one step a batch and group of cells.

    One clean pass a batch serves all cells, with its gradient where FGSM or BIM is among them. On
    a GPU, cells that differ only in their budgets run stacked in one batch, since there a launch
    costs more than its rows. On a CPU stacking saves nothing, and without it every tensor has the
    shape it would have if the cell were alone: an outcome is the same bytes whichever cells are in
    the job.

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
        largest = max((len(group) for group in self._groups), default=1)
        self._batch = max(1, rows_at_once // largest)
        self._with_gradient = any(cell.attack.uses_clean_gradient for cell in self._cells)
        self._clean: tuple[int, CleanPass] | None = None

        shape = (len(self._cells), len(images))
        self._clean_prediction = torch.zeros(len(images), dtype=torch.int64)
        self._prediction = torch.zeros(shape, dtype=torch.int64)
        self._distance = torch.zeros(shape, dtype=torch.float32)
        self._worst = torch.zeros(shape, dtype=torch.bool)
        self._finite = torch.zeros(shape, dtype=torch.bool)
        self._flat = torch.zeros(shape, dtype=torch.bool)
        self._passes = torch.zeros(len(self._cells), 2, dtype=torch.int64)

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

        times = len(group)
        radii = torch.tensor([self._cells[cell].radius for cell in group], device=x.device)
        outcome = self._cells[group[0]].attack(
            self._model,
            x.repeat(times, 1, 1, 1),
            y.repeat(times),
            radius=radii.repeat_interleave(len(x)),
            ids=ids.repeat(times),
            clean=clean.repeated(times),
        )
        self._clean_prediction[rows] = clean.prediction.cpu()
        for stored, made in (
            (self._prediction, outcome.prediction),
            (self._distance, outcome.distance),
            (self._worst, outcome.worst),
            (self._finite, outcome.finite),
            (self._flat, outcome.flat),
        ):
            stored[list(group), rows] = made.view(times, -1).cpu()
        passes = torch.tensor([outcome.forward_passes, outcome.backward_passes])
        self._passes[list(group)] += passes // times
        return {"robust": float(outcome.worst.float().mean())}

    def outcomes(self) -> list[CellOutcome]:
        """What every cell did, in the order of the cells; after the last step."""
        return [
            CellOutcome(
                label=self._labels.cpu(),
                clean_prediction=self._clean_prediction,
                adversarial_prediction=self._prediction[i],
                worst=self._worst[i],
                distance=self._distance[i],
                finite=self._finite[i],
                flat=self._flat[i],
                forward_passes=int(self._passes[i, 0]),
                backward_passes=int(self._passes[i, 1]),
                radius=cell.radius,
            )
            for i, cell in enumerate(self._cells)
        ]

    def state(self) -> dict[str, Tensor]:
        """Outcomes so far, for all cells."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up outcomes that `state` returned."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def _tensors(self) -> dict[str, Tensor]:
        return {
            "clean_prediction": self._clean_prediction,
            "prediction": self._prediction,
            "distance": self._distance,
            "worst": self._worst,
            "finite": self._finite,
            "flat": self._flat,
            "passes": self._passes,
        }

    def _clean_pass(self, batch: int, x: Tensor, y: Tensor) -> CleanPass:
        if self._clean is None or self._clean[0] != batch:
            with frozen(self._model):
                clean = CleanPass(self._model, x, y, with_gradient=self._with_gradient)
            self._clean = (batch, clean)
        return self._clean[1]


def _grouped(cells: Sequence[Cell], *, stack: bool) -> list[tuple[int, ...]]:
    """Indices of cells that run together: those of one attack, whatever their budgets."""
    if not stack:
        return [(i,) for i in range(len(cells))]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, cell in enumerate(cells):
        key = (type(cell.attack), cell.attack.params, cell.attack.seed)
        groups.setdefault(key, []).append(i)
    return [tuple(group) for group in groups.values()]
