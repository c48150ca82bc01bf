"""Students that follow experts: what each step draws, and values that move beside the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.errors import InvalidSpec
from overproof.ml.augment import dsa
from overproof.ml.distill.base import Problem
from overproof.ml.distill.trajectory import FlatNetwork, InnerStep, Lesson, Match, match
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.seeding import generator
from overproof.ml.train.experts import Experts, require_plain_parameters


@dataclass(frozen=True)
class Stretch:
    """A part of an expert's trajectory, and how its student trains.

    Attributes:
        start_epoch: the snapshot at which it begins.
        start, goal: (P,) parameters at its two ends.
        steps: of the student.
    """

    start_epoch: int
    start: Tensor
    goal: Tensor
    steps: Sequence[InnerStep]


class Students:
    """Draws stretches of experts and trains students along them.

    Args:
        problem: the network, the experts, the seed.
        strategy: augmentation of the synthetic images.
        inner_steps: of each student.
        matched_epochs: from start to goal.
        batch: images of an inner step, None for all.
        last_start: the largest epoch at which a stretch may begin.
        exact: see `trajectory.match`.

    Raises:
        InvalidSpec: no network or no experts, batch statistics, or too few epochs.
        MalformedArtifact: a trajectory is unusable.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        strategy: str,
        inner_steps: int,
        matched_epochs: int,
        batch: int | None,
        last_start: int,
        exact: bool,
    ) -> None:
        self.normalizer = problem.build()
        require_plain_parameters(self.normalizer.network)
        self._network = FlatNetwork(self.normalizer.network)
        self._experts = Experts(
            problem.experts, parameters=self._network.count, device=problem.device
        )
        if last_start + matched_epochs > self._experts.epochs:
            raise InvalidSpec(
                [
                    f"expert_epochs: stretches end after epoch {last_start + matched_epochs}, "
                    f"experts after {self._experts.epochs}; raise expert_epochs or lower "
                    "start_epochs"
                ],
                "set",
            )
        self._problem = problem
        self._families = dsa.strategy_of(strategy, mirrors=problem.dataset.mirrors)
        self._inner_steps = inner_steps
        self._matched_epochs = matched_epochs
        count = problem.dataset.classes * problem.images_per_class
        self._count = count
        self._batch = min(batch or count, count)
        self._exact = exact

    def stretch(self, index: int, first_start: int, end_start: int) -> Stretch:
        """What step `index` of the method follows.

        Args:
            index: names all random draws. Experts take turns in an order drawn anew each round.
            first_start: the first epoch at which it may begin.
            end_start: the first after that at which it may not.
        """
        seed, experts = self._problem.seed, self._experts
        lap, turn = divmod(index, len(experts))
        order = torch.randperm(len(experts), generator=generator(seed, "experts", lap))
        expert = int(order[turn])
        stream = generator(seed, "student", index)
        epoch = int(torch.randint(first_start, end_start, (), generator=stream))
        return Stretch(
            start_epoch=epoch,
            start=experts.snapshot(expert, epoch),
            goal=experts.snapshot(expert, epoch + self._matched_epochs),
            steps=self._steps(stream),
        )

    def match(self, stretch: Stretch, lesson: Lesson, rate: Tensor) -> Match:
        """Train the student of `stretch`; see `trajectory.match`."""
        return match(
            self._network,
            lesson,
            stretch.steps,
            start=stretch.start,
            goal=stretch.goal,
            rate=rate,
            exact=self._exact,
        )

    def demand(self) -> Demand:
        """One step that is differentiated twice, and the parameters after each of all steps."""
        costs = NetworkCosts.of(self.normalizer.network, self._problem.dataset.facts)
        return Demand(
            [
                Part("", 8, costs.parameters),
                Part("inner_steps", self._inner_steps, costs.parameters),
                Part("batch", self._batch, COPIES * costs.image + costs.second + 2 * costs.largest),
            ]
        )

    def last_snapshot(self, expert: int) -> Tensor:
        """(P,) parameters of an expert at its end."""
        return self._experts.snapshot(expert, self._experts.epochs)

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self._experts)

    @torch.no_grad()
    def logits(self, snapshot: Tensor, x: Tensor) -> Tensor:
        """(N, K) logits that a snapshot gives to (N, C, H, W) normalised images."""
        parts = torch.split(x, self._problem.rows_at_once)
        return torch.cat([self._network.logits(snapshot, part) for part in parts])

    def _steps(self, stream: torch.Generator) -> list[InnerStep]:
        """Batches from a permutation that is drawn anew when it is used up."""
        steps: list[InnerStep] = []
        batches: list[Tensor] = []
        for _ in range(self._inner_steps):
            if not batches:
                order = torch.randperm(self._count, generator=stream)
                batches = list(torch.split(order, self._batch))
            rows = batches.pop()
            drawn = dsa.draw(self._families, stream, len(rows), siamese=False)
            steps.append(InnerStep(rows.to(self._problem.device), drawn))
        return steps


class StudentValue:
    """A tensor that moves by SGD with momentum beside the images: a learning rate, soft labels.

    Args:
        value: where it begins; taken over and changed in place.
        learning_rate, momentum: of SGD.
        least: smaller values are set to it; None for no bound.
    """

    def __init__(
        self, value: Tensor, *, learning_rate: float, momentum: float, least: float | None = None
    ) -> None:
        self.value = value
        self._velocity = torch.zeros_like(value)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._least = least

    @property
    def number(self) -> float:
        """The value of a single number."""
        return float(self.value)

    def step(self, gradient: Tensor) -> None:
        """One step along `gradient`."""
        self._velocity.mul_(self._momentum).add_(gradient)
        self.value.add_(self._velocity, alpha=-self._learning_rate)
        if self._least is not None:
            self.value.clamp_(min=self._least)

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Value and velocity; copies."""
        return {f"{prefix}value": self.value.clone(), f"{prefix}velocity": self._velocity.clone()}

    def load_state(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Take up what `state` returned."""
        self.value.copy_(state[f"{prefix}value"])
        self._velocity.copy_(state[f"{prefix}velocity"])
