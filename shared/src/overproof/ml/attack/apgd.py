"""APGD: gradient steps with momentum whose size halves, sample by sample, when progress stops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from overproof.catalog.autoattack import ApgdParams, TargetedApgdParams
from overproof.core.threat import Norm
from overproof.errors import ShapeError
from overproof.ml.attack.ball import l2_norm, project_l2
from overproof.ml.attack.base import Attack
from overproof.ml.attack.losses import (
    cross_entropy,
    dlr,
    likeliest_wrong,
    margin,
    targeted_dlr,
    targeted_margin,
)
from overproof.ml.attack.noise import ball_direction
from overproof.ml.attack.survivors import RowState, not_broken, on_survivors, restarts
from overproof.ml.attack.victim import Victim

P = TypeVar("P", bound=ApgdParams)
# (B, K) logits, (B,) labels, (B,) targets → (B,)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

_MOMENTUM = 0.25


def checkpoints(steps: int) -> dict[int, int]:
    """Steps (from 0) after which step sizes are reviewed, each with the steps since the one before.

    Source: arXiv:2003.01690, section 4.1, in the integers of fra31/auto-attack, autopgd_base.py.
    """
    period, shortest, decrement = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    reviews = {}
    step = period - 1
    while step < steps:
        reviews[step] = period
        period = max(period - decrement, shortest)
        step += period
    return reviews


class Apgd(Attack[P]):
    """What all kinds of APGD share; survivors only, worst case over all iterates.

    Source: arXiv:2003.01690, algorithm 1; fra31/auto-attack, autopgd_base.py, and
    Harry24k/adversarial-attacks-pytorch, apgd.py and apgdt.py, whose habits are kept: the first
    review counts a positive loss at step 0 as a rise, every sample counts as just halved before
    it, and momentum after a return to the best point is measured from the point that was left.
    Differs: noise by sample instead of from a shared generator; a sample that is misclassified is
    dropped at once, so that its adversarial image is the first one, not the last one.
    """

    survivors_only: ClassVar[bool] = True

    @property
    def averages_draws(self) -> bool:
        """With several passes for each gradient."""
        return self.params.eot_iterations > 1

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """The first misclassified iterate, or `x` where there was none."""
        victim.keep_images()
        for name, loss, targets in self._aims(victim):
            for restart, rows in restarts(victim, self.params.restarts):
                direction = ball_direction(
                    ids[rows], x.shape[1:], self.norm, self.seed, "apgd", name, restart
                )
                start = (x[rows] + _wide(radius[rows]) * direction).clamp(0.0, 1.0)
                climb = _Climb(self.norm, self.params, loss)
                climb.run(victim.subset(rows), start, x[rows], radius[rows], targets[rows])
        return victim.images

    @abstractmethod
    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        """Names of noise, losses and (B,) targets, one after another."""


class LinfApgd(Apgd[ApgdParams]):
    """APGD on the cross entropy."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        yield "ce", _untargeted(cross_entropy), victim.labels


class LinfDlrApgd(Apgd[ApgdParams]):
    """APGD on the difference of logits ratio, which scaling of the logits does not change."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        require_classes(victim, 3, loss="DLR", instead="apgd-ce or pgd")
        yield "dlr", _untargeted(dlr), victim.labels


class LinfTargetedApgd(Apgd[TargetedApgdParams]):
    """APGD on the targeted DLR, towards the likeliest wrong classes of the clean image in turn.

    Any misclassification counts, not only as the target.
    """

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        require_classes(victim, 4, loss="targeted DLR", instead="apgd-dlr or autoattack")
        yield from _towards(victim, self.params.targets, targeted_dlr)


class LinfMarginApgd(Apgd[ApgdParams]):
    """APGD on the bare margin: what AutoAttack does for the DLR where there are two classes."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        yield "margin", _untargeted(margin), victim.labels


class LinfTargetedMarginApgd(Apgd[TargetedApgdParams]):
    """APGD on the bare targeted margin: for the targeted DLR where there are two or three."""

    def _aims(self, victim: Victim) -> Iterator[tuple[str, Loss, Tensor]]:
        yield from _towards(victim, self.params.targets, targeted_margin)


class L2Apgd(LinfApgd):
    """As in L∞, with steps along the gradient and starts on the sphere."""

    norm: ClassVar[Norm] = Norm.L2


class L2DlrApgd(LinfDlrApgd):
    """As in L∞, with steps along the gradient and starts on the sphere."""

    norm: ClassVar[Norm] = Norm.L2


class L2TargetedApgd(LinfTargetedApgd):
    """As in L∞, with steps along the gradient and starts on the sphere."""

    norm: ClassVar[Norm] = Norm.L2


class L2MarginApgd(LinfMarginApgd):
    """As in L∞, with steps along the gradient and starts on the sphere."""

    norm: ClassVar[Norm] = Norm.L2


class L2TargetedMarginApgd(LinfTargetedMarginApgd):
    """As in L∞, with steps along the gradient and starts on the sphere."""

    norm: ClassVar[Norm] = Norm.L2


def require_classes(victim: Victim, fewest: int, *, loss: str, instead: str) -> None:
    """Refuse a loss that needs more classes than the victim has.

    Raises:
        ShapeError: there are fewer than `fewest`.
    """
    if victim.classes < fewest:
        raise ShapeError(
            f"the {loss} loss needs at least {fewest} classes, the victim has {victim.classes}; "
            f"use {instead}"
        )


def _untargeted(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    return lambda logits, y, _: loss(logits, y)


def _towards(victim: Victim, count: int | None, loss: Loss) -> Iterator[tuple[str, Loss, Tensor]]:
    targets = likeliest_wrong(victim.clean.logits, victim.labels, count)
    for rank in range(targets.shape[1]):
        yield f"target-{rank}", loss, targets[:, rank]


@dataclass
class _Position(RowState):
    """Where each sample stands; the reasons of its next step."""

    x: Tensor
    radius: Tensor
    low: Tensor
    high: Tensor
    target: Tensor
    x_adv: Tensor
    left: Tensor  # the point before
    gradient: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    loss: Tensor  # of the step before
    rises: Tensor  # of the loss, since the review before
    reviewed_loss: Tensor  # best_loss at the review before
    halved: Tensor  # at the review before
    step_size: Tensor


class _Climb:
    """One run from one start."""

    def __init__(self, norm: Norm, params: ApgdParams, loss: Loss) -> None:
        self._norm = norm
        self._params = params
        self._loss = loss

    def run(self, victim: Victim, start: Tensor, x: Tensor, radius: Tensor, target: Tensor) -> None:
        """Walk `steps` steps; what is found is on the record of the victim."""
        loss, gradient = self._look(victim, start, target)
        bound = _wide(radius)
        start_position = _Position(
            x=x,
            radius=radius,
            low=(x - bound).clamp_(min=0.0),
            high=(x + bound).clamp_(max=1.0),
            target=target,
            x_adv=start,
            left=start,
            gradient=gradient,
            best=start,
            best_gradient=gradient,
            best_loss=loss,
            loss=torch.zeros_like(loss),
            rises=torch.zeros_like(loss),
            reviewed_loss=loss,
            halved=torch.ones_like(loss, dtype=torch.bool),
            step_size=2.0 * radius,
        )
        reviews = checkpoints(self._params.steps)
        steps = on_survivors(victim, start_position, self._params.steps, not_broken)
        for step, victim_now, at in steps:
            self._advance(at, momentum=_MOMENTUM if step else 0.0)
            loss, at.gradient = self._look(victim_now, at.x_adv, at.target)
            at.rises = at.rises + (loss > at.loss)
            at.loss = loss
            better = loss > at.best_loss
            at.best = torch.where(_wide(better), at.x_adv, at.best)
            at.best_gradient = torch.where(_wide(better), at.gradient, at.best_gradient)
            at.best_loss = torch.where(better, loss, at.best_loss)
            if step in reviews:
                self._review(at, period=reviews[step])

    def _look(self, victim: Victim, x_adv: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        look = victim.look(
            x_adv,
            lambda logits, y: self._loss(logits, y, target),
            draws=self._params.eot_iterations,
        )
        return look.loss, look.gradient

    def _advance(self, at: _Position, *, momentum: float) -> None:
        if self._norm is Norm.L2:
            length = _wide(l2_norm(at.gradient) + 1e-12)
            ahead = at.x_adv + _wide(at.step_size) * at.gradient / length
        else:
            ahead = torch.addcmul(at.x_adv, at.gradient.sign(), _wide(at.step_size))
        ahead = self._inside(at, ahead)
        blend = at.x_adv + (1.0 - momentum) * (ahead - at.x_adv)
        blend.add_(at.x_adv - at.left, alpha=momentum)
        at.x_adv, at.left = self._inside(at, blend), at.x_adv

    def _inside(self, at: _Position, point: Tensor) -> Tensor:
        if self._norm is Norm.L2:
            return project_l2(point, at.x, at.radius)
        return torch.clamp(point, at.low, at.high)

    def _review(self, at: _Position, *, period: int) -> None:
        """Halve the steps of samples that stopped rising, and take them back to their best."""
        oscillates = at.rises <= self._params.rho * period
        stuck = ~at.halved & (at.reviewed_loss >= at.best_loss)
        halve = oscillates | stuck
        at.step_size = torch.where(halve, at.step_size / 2.0, at.step_size)
        at.x_adv = torch.where(_wide(halve), at.best, at.x_adv)
        at.gradient = torch.where(_wide(halve), at.best_gradient, at.gradient)
        at.halved = halve
        at.reviewed_loss = at.best_loss
        at.rises = torch.zeros_like(at.rises)


def _wide(per_row: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1)."""
    return per_row.view(-1, 1, 1, 1)
