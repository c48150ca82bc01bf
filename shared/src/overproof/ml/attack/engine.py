"""Runs many attack cells on one victim, sharing whatever changes no number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from overproof.errors import OtherSteps, ShapeError
from overproof.ml.attack.base import Attack, AttackOutcome
from overproof.ml.attack.cells import Cell, CellOutcome
from overproof.ml.attack.inputs import logits_of
from overproof.ml.attack.ledger import Ledger
from overproof.ml.attack.passes import CleanPass, frozen
from overproof.ml.train.evaluation import pixels_of

T = TypeVar("T")

_STEPS = "steps"  # entry of a state


@dataclass(frozen=True)
class _Stage:
    """Work on the survivors of the whole test set.

    Attributes:
        cells: for which it is.
        part: number of the part of their cascade; None where they are no cascade.
        together: one run tells the outcome at all budgets.
        rows: at most, as (cell, sample) or, together, as samples.
    """

    cells: tuple[int, ...]
    part: int | None
    together: bool
    rows: int


class CellEngine:
    """Attacks one victim in several cells; a `Resumable` in batches of images.

    First come the cells that attack every image, batch by batch: one clean pass serves all of them,
    with its gradient where FGSM or BIM is among them; the first batch is looked at twice, to find
    networks whose outputs are random. Then come the cells that attack survivors only, part by part
    of their cascades: each part draws full batches from the survivors of the whole test set, and
    a part that looks for the nearest adversarial image runs once for all budgets.

    On a GPU, cells that differ only in their budgets run stacked in one batch, since there a launch
    costs more than its rows. On a CPU stacking saves nothing, and without it every tensor has the
    shape it would have if the cell were alone: an outcome is the same bytes whichever cells are in
    the job. Only a part of cascades that runs once for all budgets has batches of other sizes then,
    which change roundings and no more.

    Args:
        model: pixels in [0, 1] → logits, on the first device.
        images: (N, C, H, W) uint8, any device.
        labels: (N,) int64.
        cells: what to run.
        device: where to compute; or several, which share out the images of each batch.
        rows_at_once: most rows sent through the network at once; bounds memory.

    Attributes:
        pulse: called at every pass forward. What it raises ends the step, whose work is lost.

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
        device: torch.device | Sequence[torch.device],
        rows_at_once: int,
    ) -> None:
        if not 0 < len(images) == len(labels):
            raise ShapeError(f"{len(images)} images and {len(labels)} labels cannot be attacked")
        devices = (device,) if isinstance(device, torch.device) else tuple(device)
        self._models = [model, *(copy.deepcopy(model).to(each) for each in devices[1:])]
        self._devices = devices
        self._images = images.to(devices[0])
        self._labels = labels.to(devices[0])
        self._cells = tuple(cells)
        self._ledger = Ledger(self._cells, labels)
        self.pulse: Callable[[], None] = lambda: None

        stack = devices[0].type != "cpu"
        groups = _grouped(self._cells, stack=stack)
        # Where no cell attacks all images, the clean pass still has to be made.
        self._groups = [group for group in groups if not self._of_survivors(group)] or [()]
        rows = rows_at_once * len(devices)
        largest = max(
            (len(group) for group in self._groups if not self._together(group)), default=1
        )
        self._batch, self._pool = max(1, rows // max(1, largest)), rows
        self._stages = [
            stage
            for group in groups
            if self._of_survivors(group)
            for stage in self._stages_of(group, stack=stack)
        ]
        self._with_gradient = any(cell.attack.uses_clean_gradient for cell in self._cells)
        self._clean: tuple[int, CleanPass] | None = None

    @property
    def total_steps(self) -> int:
        """Batches of images times groups of cells, and the most batches of survivors."""
        batches = -(-len(self._images) // self._batch) * len(self._groups)
        return batches + sum(self._batches(stage) for stage in self._stages)

    def step(self, index: int) -> Mapping[str, float]:
        """Attack one batch of images in one group of cells."""
        batches = -(-len(self._images) // self._batch) * len(self._groups)
        with self._pulsing():
            if index < batches:
                return self._attack_batch(*divmod(index, len(self._groups)))
            index -= batches
            for stage in self._stages:
                if index < self._batches(stage):
                    return self._attack_survivors(stage, index)
                index -= self._batches(stage)
        raise IndexError(f"step {index} comes after the last one")

    def outcomes(self) -> list[CellOutcome]:
        """What every cell did, in the order of the cells; after the last step."""
        return self._ledger.outcomes()

    def state(self) -> dict[str, Tensor]:
        """Outcomes so far, for all cells, and what the steps were that led to them."""
        return self._ledger.state() | {_STEPS: self._steps()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up outcomes that `state` returned.

        Raises:
            OtherSteps: of an engine with other batches or on another kind of device, where a
                number of steps stands for other samples.
        """
        steps = state.get(_STEPS)
        if steps is None or not torch.equal(steps.cpu(), self._steps()):
            raise OtherSteps("outcomes of batches of another size cannot be gone on with")
        self._ledger.load_state(state)

    def _steps(self) -> Tensor:
        """Numbers from which it follows what each step attacks."""
        stages = (self._batches(stage) for stage in self._stages)
        return torch.tensor([self._batch, self._pool, len(self._groups), *stages])

    # ---- cells that attack every image ----

    def _attack_batch(self, batch: int, turn: int) -> Mapping[str, float]:
        group = self._groups[turn]
        first = batch * self._batch
        ids = torch.arange(first, min(first + self._batch, len(self._images)))
        rows = slice(first, first + len(ids))
        clean = self._clean_pass(batch, rows)
        if not group:
            return {}
        if self._together(group):
            outcomes = self._at_budgets(self._cells[group[0]].attack, group, ids, clean)
        else:
            times = len(group)
            stacked = self._attacked(
                self._cells[group[0]].attack,
                ids.repeat(times),
                torch.tensor(self._radii(group)).repeat_interleave(len(ids)),
                clean.repeated(times),
            )
            outcomes = [stacked.rows(slice(i * len(ids), (i + 1) * len(ids))) for i in range(times)]
        for cell, outcome in zip(group, outcomes, strict=True):
            self._ledger.take(cell, rows, outcome)
            self._account(cell, outcome, 1, len(group))
        return {"robust": float(outcomes[-1].worst.float().mean())}

    def _clean_pass(self, batch: int, rows: slice) -> CleanPass:
        if self._clean is None or self._clean[0] != batch:
            x, y = pixels_of(self._images[rows]), self._labels[rows]
            with frozen(self._models[0]):
                clean = CleanPass(self._models[0], x, y, with_gradient=self._with_gradient)
                random = batch == 0 and _differs(self._models[0], x, clean.logits)
            self._clean = (batch, clean)
            self._ledger.take_clean(rows, clean, random=random)
        return self._clean[1]

    # ---- cells that attack survivors ----

    def _stages_of(self, group: tuple[int, ...], *, stack: bool) -> Iterator[_Stage]:
        attack, count = self._cells[group[0]].attack, len(self._images)
        # As many parts, and of the same kinds, whatever the number of classes.
        parts = list(attack.parts(classes=10).values())
        for number, part in enumerate(parts or [attack]):
            together = part.shares_budgets
            where = number if parts else None
            if together or stack:
                yield _Stage(group, where, together, count * (1 if together else len(group)))
            else:
                yield from (_Stage((cell,), where, False, count) for cell in group)

    def _batches(self, stage: _Stage) -> int:
        return -(-stage.rows // self._pool)

    def _attack_survivors(self, stage: _Stage, batch: int) -> Mapping[str, float]:
        chosen = slice(batch * self._pool, (batch + 1) * self._pool)
        reached = [self._ledger.reached(cell, stage.part or 0) for cell in stage.cells]
        attack = self._cells[stage.cells[0]].attack
        if stage.part is not None:
            for cell in stage.cells:
                self._ledger.note(cell, attack.substitutions(self._ledger.classes))
            attack = list(attack.parts(self._ledger.classes).values())[stage.part]
        if stage.together:
            samples = torch.unique(torch.cat(reached))[chosen]
            self._attack_together(stage, attack, samples, reached)
            return {}
        owners = torch.cat([torch.full_like(rows, i) for i, rows in enumerate(reached)])[chosen]
        samples = torch.cat(reached)[chosen]
        if len(samples) == 0:
            return {}
        clean = self._ledger.clean(samples, self._devices[0])
        radii = torch.tensor(self._radii(stage.cells))[owners]
        outcome = self._attacked(attack, samples, radii, clean)
        for i, cell in enumerate(stage.cells):
            own = (owners == i).nonzero().view(-1)
            if len(own):
                self._record(stage, cell, samples[own], outcome.taken(own))
                self._account(cell, outcome, len(own), len(owners))
        return {"robust": float(outcome.worst.float().mean())}

    def _attack_together(
        self, stage: _Stage, attack: Attack[Any], samples: Tensor, reached: Sequence[Tensor]
    ) -> None:
        if len(samples) == 0:
            return
        clean = self._ledger.clean(samples, self._devices[0])
        outcomes = self._at_budgets(attack, stage.cells, samples, clean)
        shares = [torch.isin(samples, rows).nonzero().view(-1) for rows in reached]
        whole = sum(len(own) for own in shares)
        for cell, own, outcome in zip(stage.cells, shares, outcomes, strict=True):
            self._record(stage, cell, samples[own], outcome.taken(own))
            self._account(cell, outcome, len(own), whole)

    def _record(self, stage: _Stage, cell: int, samples: Tensor, outcome: AttackOutcome) -> None:
        if stage.part is None:
            self._ledger.take(cell, samples, outcome)
        else:
            self._ledger.take_part(cell, samples, outcome, stage.part)

    # ---- what both do ----

    def _attacked(
        self, attack: Attack[Any], samples: Tensor, radii: Tensor, clean: CleanPass
    ) -> AttackOutcome:
        """One attack on some samples, shared out among the devices."""

        def on_one(place: int, rows: Tensor) -> AttackOutcome:
            x, y, ids = self._inputs(samples[rows], place)
            near = clean.taken(rows.to(self._devices[0])).to(x.device)
            return attack(
                self._models[place], x, y, radius=radii[rows].to(x.device), ids=ids, clean=near
            )

        return AttackOutcome.joined(self._on_all(len(samples), on_one))

    def _at_budgets(
        self, attack: Attack[Any], cells: Sequence[int], samples: Tensor, clean: CleanPass
    ) -> list[AttackOutcome]:
        """One run for all budgets; each outcome tells the passes of all."""

        def on_one(place: int, rows: Tensor) -> list[AttackOutcome]:
            x, y, ids = self._inputs(samples[rows], place)
            near = clean.taken(rows.to(self._devices[0])).to(x.device)
            radii = self._radii(cells)
            return attack.at_budgets(self._models[place], x, y, radii=radii, ids=ids, clean=near)

        parts = self._on_all(len(samples), on_one)
        return [AttackOutcome.joined(pieces) for pieces in zip(*parts, strict=True)]

    def _on_all(self, count: int, work: Callable[[int, Tensor], T]) -> list[T]:
        """`work(device number, rows)` on equal shares of the rows, at the same time."""
        shares = [
            rows for rows in torch.arange(count).tensor_split(len(self._devices)) if len(rows)
        ]
        if len(shares) == 1:
            return [work(0, shares[0])]
        with ThreadPoolExecutor(len(shares)) as pool:
            return list(pool.map(work, range(len(shares)), shares))

    def _inputs(self, samples: Tensor, place: int) -> tuple[Tensor, Tensor, Tensor]:
        device = self._devices[place]
        rows = samples.to(self._devices[0])
        x = pixels_of(self._images[rows].to(device))
        return x, self._labels[rows].to(device), samples.to(device)

    def _account(self, cell: int, outcome: AttackOutcome, share: int, whole: int) -> None:
        self._ledger.charge(
            cell,
            outcome.forward_passes * share // whole,
            outcome.backward_passes * share // whole,
        )
        self._ledger.note(cell, outcome.notes)

    @contextmanager
    def _pulsing(self) -> Iterator[None]:
        handle = self._models[0].register_forward_pre_hook(lambda *_: self.pulse())
        try:
            yield
        finally:
            handle.remove()

    def _radii(self, cells: Sequence[int]) -> list[float]:
        return [self._cells[cell].radius for cell in cells]

    def _together(self, group: tuple[int, ...]) -> bool:
        return bool(group) and self._cells[group[0]].attack.shares_budgets

    def _of_survivors(self, group: tuple[int, ...]) -> bool:
        return self._cells[group[0]].attack.survivors_only


def _differs(model: nn.Module, x: Tensor, logits: Tensor) -> bool:
    """Whether a second look shows other logits, by more than kernels differ from run to run."""
    with torch.no_grad():
        again = logits_of(model, x)
    return not torch.allclose(again, logits, rtol=1e-3, atol=1e-4, equal_nan=True)


def _grouped(cells: Sequence[Cell], *, stack: bool) -> list[tuple[int, ...]]:
    """Indices of cells that run together: those of one attack, whatever their budgets.

    Where cells are not stacked these are only cells of attacks that share budgets, or that have
    parts that do.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, cell in enumerate(cells):
        attack = cell.attack
        share = attack.shares_budgets or bool(attack.parts(classes=10))
        apart = () if stack or share else (i,)
        key = (type(attack), attack.params, attack.seed, *apart)
        groups.setdefault(key, []).append(i)
    return [tuple(group) for group in groups.values()]
