"""FAB: steps along the linear view of the decision boundary, towards the nearest adversarial."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from overproof.catalog.autoattack import FabParams, TargetedFabParams
from overproof.core.threat import Norm
from overproof.ml.attack.ball import l2_norm
from overproof.ml.attack.base import Attack
from overproof.ml.attack.losses import likeliest_wrong, targeted_margin
from overproof.ml.attack.noise import ball_direction
from overproof.ml.attack.survivors import RowState, not_broken, on_survivors, restarts
from overproof.ml.attack.victim import Victim

P = TypeVar("P", bound=FabParams)

_SHORTEST = 1e-8  # of a step, where two are weighed against each other
_TINY = 1e-12

# (B,) logit of another class minus the true one, and (B, C, H, W) its gradient by the pixels
Boundary = tuple[Tensor, Tensor]


@dataclass
class _Position(RowState):
    x: Tensor
    x_adv: Tensor
    target: Tensor


class Fab(Attack[P]):
    """What FAB and its targeted form share; survivors only.

    With one restart the budget only says when a sample is done: at a budget of 0, `nearest` of the
    outcome is the distance that the attack reaches, and comparing it with any budget gives the
    flags of a run with that budget.

    Source: arXiv:1907.02044, algorithm 1; fra31/auto-attack, fab_base.py, and
    Harry24k/adversarial-attacks-pytorch, fab.py. Differs: noise by sample instead of from a shared
    generator; points at which a gradient is taken are judged too.
    """

    minimum_norm: ClassVar[bool] = True
    survivors_only: ClassVar[bool] = True

    @property
    def shares_budgets(self) -> bool:
        """Not with restarts, which start at points that depend on the budget."""
        return self.params.restarts == 1

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The nearest misclassified point, or `x` where there was none."""
        victim.keep_images()
        for name, target in self._aims(victim):
            for restart, rows in restarts(victim, self.params.restarts):
                start = x[rows]
                if restart:
                    away = ball_direction(
                        ids[rows], x.shape[1:], self.norm, self.seed, "fab", name, restart
                    )
                    start = (start + 0.5 * _wide(radius[rows]) * away).clamp(0.0, 1.0)
                self._run(victim.subset(rows), _Position(x[rows], start, target[rows]))
        return victim.images

    @abstractmethod
    def _aims(self, victim: Victim) -> Iterator[tuple[str, Tensor]]:
        """Names of noise and (B,) targets, one after another."""

    @abstractmethod
    def _boundary(self, victim: Victim, x_adv: Tensor, target: Tensor) -> Boundary:
        """The boundary to step to, as it looks from `x_adv`."""

    def _run(self, victim: Victim, start: _Position) -> None:
        for _, victim_now, at in on_survivors(victim, start, self.params.steps, not_broken):
            difference, normal = self._boundary(victim_now, at.x_adv, at.target)
            at.x_adv = self._advance(at, difference, normal)
            found = victim_now.predict(at.x_adv) != victim_now.labels
            nearer = at.x + self.params.beta * (at.x_adv - at.x)
            at.x_adv = torch.where(_wide(found), nearer, at.x_adv)

    def _advance(self, at: _Position, difference: Tensor, normal: Tensor) -> Tensor:
        """A little beyond the boundary, from a mean of `x_adv` and `x` that leans to the nearer."""
        offset = ((at.x - at.x_adv) * normal).flatten(1).sum(dim=1)
        # Both projections have one normal; together they are sorted in one go.
        steps = step_to_plane(
            torch.cat([at.x_adv, at.x]),
            normal.repeat(2, 1, 1, 1),
            torch.cat([difference, difference + offset]),
            self.norm,
        )
        step, step_of_x = steps.chunk(2)
        length, length_of_x = self._length(steps).clamp(min=_SHORTEST).chunk(2)
        share = _wide((length / (length + length_of_x)).clamp(max=self.params.alpha_max))
        eta = self.params.eta
        mean = (1.0 - share) * (at.x_adv + eta * step) + share * (at.x + eta * step_of_x)
        return mean.clamp(0.0, 1.0)

    def _length(self, step: Tensor) -> Tensor:
        if self.norm is Norm.L2:
            return l2_norm(step)
        return step.abs().flatten(1).amax(dim=1)


class LinfFab(Fab[FabParams]):
    """FAB towards the class whose boundary looks nearest, chosen anew at each step."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Tensor]]:
        yield "nearest", victim.labels

    def _boundary(self, victim: Victim, x_adv: Tensor, target: Tensor) -> Boundary:
        # Class by class, so that only the nearest gradient so far is held.
        shortest = torch.full(target.shape, torch.inf, device=x_adv.device)
        chosen, normal = torch.zeros_like(shortest), torch.zeros_like(x_adv)
        for other, (difference, gradient) in enumerate(victim.boundaries(x_adv)):
            away = difference.abs() / (_TINY + self._dual_length(gradient))
            nearer = (away < shortest) & (victim.labels != other)
            shortest = torch.where(nearer, away, shortest)
            chosen = torch.where(nearer, difference, chosen)
            normal = torch.where(_wide(nearer), gradient, normal)
        return chosen, normal

    def _dual_length(self, gradient: Tensor) -> Tensor:
        if self.norm is Norm.L2:
            return l2_norm(gradient)
        return gradient.abs().flatten(1).sum(dim=1)


class LinfTargetedFab(Fab[TargetedFabParams]):
    """FAB towards the likeliest wrong classes of the clean image in turn; any hit counts."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Tensor]]:
        targets = likeliest_wrong(victim.clean.logits, victim.labels, self.params.targets)
        for rank in range(targets.shape[1]):
            yield f"target-{rank}", targets[:, rank]

    def _boundary(self, victim: Victim, x_adv: Tensor, target: Tensor) -> Boundary:
        look = victim.look(x_adv, lambda logits, y: targeted_margin(logits, y, target))
        return look.loss, look.gradient


class L2Fab(LinfFab):
    """As in L∞, with distances and projections in L2."""

    norm: ClassVar[Norm] = Norm.L2


class L2TargetedFab(LinfTargetedFab):
    """As in L∞, with distances and projections in L2."""

    norm: ClassVar[Norm] = Norm.L2


def step_to_plane(point: Tensor, normal: Tensor, value: Tensor, norm: Norm) -> Tensor:
    """The shortest step from `point` onto a hyperplane that stays in the pixel box.

    Args:
        point: (B, C, H, W) in [0, 1].
        normal: (B, C, H, W) of the hyperplane.
        value: (B,), what the linear function with that normal is at `point`; 0 on the hyperplane.
        norm: in which the step is short.

    Returns:
        (B, C, H, W) d with point + d in [0, 1] and value + <normal, d> = 0; where the box does not
        reach the hyperplane, the step to the corner next to it.

    Source: arXiv:1907.02044, section 3.1.
    """
    downhill = -(normal * _wide(value.sign()))  # along it the value goes to 0
    slope = downhill.abs()
    room = torch.where(downhill > 0, 1.0 - point, point)
    room = torch.where(downhill == 0, torch.zeros_like(room), room)
    # Every pixel moves by `level` (L2: times its slope) or as far as it can.
    if norm is Norm.L2:
        full, gain = room / slope.clamp(min=torch.finfo(slope.dtype).tiny), slope.square()
    else:
        full, gain = room, slope
    level = _wide(_level(full.flatten(1), gain.flatten(1), value.abs()))
    moved = torch.minimum(level * slope if norm is Norm.L2 else level, room)
    return moved * downhill.sign()


def _level(full: Tensor, gain: Tensor, amount: Tensor) -> Tensor:
    """(B,) smallest t >= 0 with sum(gain · min(t, full)) = amount; huge where there is none.

    Args:
        full: (B, D) not negative; where a coordinate stops to gain.
        gain: (B, D) not negative, per unit of t.
        amount: (B,) not negative.
    """
    order = full.argsort(dim=1)
    full, gain = full.gather(1, order).double(), gain.gather(1, order).double()
    gained = (gain * full).cumsum(dim=1)  # by the coordinates that stopped
    stopped = gain.cumsum(dim=1)
    total = stopped[:, -1:]
    at_stops = gained + full * (total - stopped)
    # The level lies between two neighbouring stops, where the sum is a line.
    stop = torch.searchsorted(at_stops, amount.double().view(-1, 1))
    before = (stop - 1).clamp(min=0)
    first = stop == 0
    rest = amount.view(-1, 1) - gained.gather(1, before).masked_fill(first, 0.0)
    slope = total - stopped.gather(1, before).masked_fill(first, 0.0)
    huge = torch.finfo(torch.float32).max
    level = (rest / slope).masked_fill(stop == full.shape[1], huge)
    return level.nan_to_num(nan=0.0).clamp(0.0, huge).view(-1).float()


def _wide(per_row: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1)."""
    return per_row.view(-1, 1, 1, 1)
