"""Inversion of a teacher (SRe2L): images of noise become what it recognises and remembers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from overproof.catalog.taught import CurriculumParams, InversionParams, inversion_preset
from overproof.errors import InvalidSpec
from overproof.ml.augment.views import Views, apply, crop_boxes, whole_boxes
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.seeding import generator

_IMAGES_AT_ONCE = 512  # that a block moves together; of the problem alone, so that steps are too
_BETAS = (0.5, 0.9)
_BLOCK = "block."  # prefix of what a block remembers in the state


class Inversion(DistillationMethod[InversionParams]):
    """Move noise so that a teacher gives it its class and its batch norms see what they know.

    Images of one number and several classes form a group, of one image a class: the statistics
    of a group are compared with the running ones, and groups do not influence each other. The
    teacher sees one random crop of a group in each step. A block of groups moves at once; a step
    is an iteration of one block.

    Args:
        params: see `InversionParams`.
        problem: see `DistillationMethod`; with a teacher, without a network. The training images
            are not looked at.

    Attributes:
        entropy, distance: parts of the loss of the last step: cross entropy and weighted distance
            of statistics, means over groups, on the device.

    Raises:
        InvalidSpec: there is no teacher, or it has no batch statistics.

    Source: arXiv:2306.13092, equations 5 to 8; VILA-Lab/SRe2L, recover; with `CurriculumParams`
    arXiv:2311.18838, section 3.2; VILA-Lab/SRe2L, CDA. Differs: the terms of total variation and
    of the norm are absent, whose published weight is 0; pixels are stored as they are, where the
    code truncates and compresses them.
    """

    def __init__(self, params: InversionParams, problem: Problem) -> None:
        super().__init__(params, problem)
        self._teacher = problem.asked()
        if not any(isinstance(module, _BatchNorm) for module in self._teacher.modules()):
            raise InvalidSpec(
                ["teacher: batch statistics are compared, and it has none; give it norm: batch"],
                "set",
            )
        facts = problem.dataset.facts
        preset = inversion_preset(max(facts.size), curriculum=isinstance(params, CurriculumParams))
        self._iterations = params.iterations or preset.iterations
        self._learning_rate = params.learning_rate or preset.learning_rate
        weight = params.statistics_weight
        self._weight = preset.statistics_weight if weight is None else weight
        self._smallest = params.smallest_crop or preset.smallest_crop
        self._jitter = preset.jitter if params.jitter is None else params.jitter
        self._jitter_back = preset.jitter_back
        self._width = max(1, _IMAGES_AT_ONCE // facts.classes)  # numbers of a block
        self._groups = torch.split(torch.arange(facts.classes), params.group)
        self._bounds = tuple(
            self._teacher.normalize(
                torch.full((1, facts.channels, *facts.size), bound).to(problem.device)
            )
            for bound in (0.0, 1.0)
        )
        self._images = torch.stack(
            [self._noise(number) for number in range(problem.images_per_class)]
        )
        self._block = -1
        self._moving = self._images[:0]
        self._optimizer = torch.optim.Adam([self._moving])
        self.entropy = self.distance = torch.zeros(())

    @property
    def total_steps(self) -> int:
        """Iterations of all blocks, one block after another."""
        return -(-self.problem.images_per_class // self._width) * self._iterations

    def smallest_crop(self, iteration: int) -> float:
        """Share of the area of the smallest crop in an iteration; 1 for none at all."""
        if not isinstance(self.params, CurriculumParams):
            return self._smallest
        end = self.params.milestone * self._iterations
        if iteration >= end:
            return self._smallest
        left = (1 + math.cos(math.pi * iteration / end)) / 2
        return self._smallest + (1 - self._smallest) * left

    def step(self, index: int) -> Mapping[str, float]:
        """Move the images of a block once, and keep them within the pixels that there are."""
        block, iteration = divmod(index, self._iterations)
        if block != self._block:
            self._begin(block)
        first = block * self._width
        gradient = torch.zeros_like(self._moving)
        entropy = distance = torch.zeros((), device=gradient.device)
        for classes in self._groups:
            at_once = max(1, self.problem.rows_at_once // len(classes))
            for rows in torch.split(torch.arange(len(self._moving)), at_once):
                numbers = [first + row for row in rows.tolist()]
                part = self._moving.detach()[rows][:, classes].requires_grad_(True)
                seen = self._seen(part, numbers, int(classes[0]), iteration)
                of_class, of_statistics = self._losses(seen, classes)
                (slope,) = torch.autograd.grad((of_class + of_statistics).sum(), part)
                gradient[rows[:, None], classes] = slope
                entropy = entropy + of_class.detach().sum()
                distance = distance + of_statistics.detach().sum()
        self._descend(gradient, iteration)
        count = len(self._groups) * len(self._moving)
        self.entropy, self.distance = entropy / count, distance / count
        return self._read(
            index,
            self.entropy + self.distance,
            cross_entropy=self.entropy,
            statistics=self.distance,
        )

    def demand(self) -> Demand:
        """Images on their way through the teacher, and where those of a block are to move."""
        costs = NetworkCosts.of(self._teacher.network, self.problem.dataset.facts)
        each = len(self._groups[0])
        numbers = min(self._width, self.problem.images_per_class)
        groups = min(max(1, self.problem.rows_at_once // each), numbers)
        passing = COPIES * costs.image + costs.first + 2 * costs.largest
        moved = numbers * self.problem.dataset.classes * costs.image
        return Demand([Part("", 1, 2 * moved), Part("group", each, groups * passing)])

    def preview(self) -> Tensor:
        """The images as they are now, as pixels in [0, 1]."""
        pixels = self._teacher.denormalize(self._images.transpose(0, 1).flatten(0, 1))
        return pixels.clamp(0, 1)

    def result(self) -> DistilledSet:
        """The images as they are now."""
        dataset = self.problem.dataset
        return DistilledSet(
            images=self.preview().cpu(),
            labels=labels_of(dataset.classes, self.problem.images_per_class),
        )

    def state(self) -> dict[str, Tensor]:
        """All images, and what Adam remembers of those that move."""
        state = {"images": self._images.clone()}
        if self._block >= 0:
            state[f"{_BLOCK}number"] = torch.tensor(self._block)
            for name, value in self._optimizer.state.get(self._moving, {}).items():
                state[_BLOCK + name] = value.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._images.copy_(state["images"])
        if f"{_BLOCK}number" in state:
            self._begin(int(state[f"{_BLOCK}number"]))
            memory = {
                # Adam keeps its count of steps on the CPU.
                name: state[_BLOCK + name].to(
                    "cpu" if name == "step" else self._images.device, copy=True
                )
                for name in ("step", "exp_avg", "exp_avg_sq")
                if _BLOCK + name in state
            }
            if memory:
                self._optimizer.state[self._moving].update(memory)

    def _noise(self, number: int) -> Tensor:
        """(K, C, H, W) standard normal values."""
        facts = self.problem.dataset.facts
        stream = generator(self.problem.seed, "noise", number)
        shape = (facts.classes, facts.channels, *facts.size)
        return torch.randn(shape, generator=stream).to(self.problem.device)

    def _begin(self, block: int) -> None:
        self._block = block
        # A view: what moves is part of all images.
        self._moving = self._images[block * self._width : (block + 1) * self._width]
        self._optimizer = torch.optim.Adam(
            [self._moving], lr=self._learning_rate, betas=_BETAS, eps=1e-8
        )

    def _descend(self, gradient: Tensor, iteration: int) -> None:
        for group in self._optimizer.param_groups:
            wave = (1 + math.cos(math.pi * iteration / self._iterations)) / 2
            group["lr"] = self._learning_rate * wave
        self._moving.grad = gradient
        self._optimizer.step()
        self._moving.grad = None
        low, high = self._bounds
        self._moving.clamp_(low, high)

    def _seen(self, part: Tensor, numbers: Sequence[int], first: int, iteration: int) -> Tensor:
        """(g, k, C, H, W) images of g groups → the same, each group cropped, mirrored, rolled."""
        size = (part.shape[3], part.shape[4])
        smallest = self.smallest_crop(iteration)
        crops = self._smallest < 1
        boxes, mirrored, rolls = [], [], []
        low = -self._jitter if self._jitter_back else 0
        for number in numbers:
            stream = generator(self.problem.seed, "view", number, first, iteration)
            boxes.append(crop_boxes(1, size, smallest, stream) if crops else whole_boxes(1, size))
            mirrored.append(torch.rand(1, generator=stream) < 0.5)
            rolls.append(torch.randint(low, self._jitter + 1, (2,), generator=stream))
        each = part.shape[1]
        x = part.flatten(0, 1)
        if crops:
            flips = torch.cat(mirrored) & self.problem.dataset.mirrors
            views = Views(
                boxes=torch.cat(boxes).repeat_interleave(each, dim=0),
                mirrored=flips.repeat_interleave(each),
                tiles=torch.zeros(len(x), 2, 1, dtype=torch.int64),
            )
            x = apply(x, views)
        return _rolled(x, torch.stack(rolls).repeat_interleave(each, dim=0)).view(part.shape)

    def _losses(self, seen: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """(g,) cross entropy and weighted distance of statistics of each group."""
        groups, each = seen.shape[:2]
        with batch_norm_inputs(self._teacher.network) as inputs:
            logits = self._teacher.network(seen.flatten(0, 1))
        labels = classes.repeat(groups).to(logits.device)
        entropy = functional.cross_entropy(logits, labels, reduction="none").view(groups, each)
        distance = torch.zeros(groups, device=seen.device)
        for i, (norm, x) in enumerate(inputs):
            factor = self.params.first_weight if i == 0 else 1.0
            distance = distance + factor * statistics_distance(
                norm, x.reshape(groups, each, *x.shape[1:])
            )
        return entropy.mean(dim=1), self._weight * distance


@contextmanager
def batch_norm_inputs(network: nn.Module) -> Iterator[list[tuple[_BatchNorm, Tensor]]]:
    """Batch norms of `network` with what enters them, in order, while the context is open."""
    inputs: list[tuple[_BatchNorm, Tensor]] = []

    def keep(module: nn.Module, entering: tuple[Tensor, ...]) -> None:
        assert isinstance(module, _BatchNorm)
        inputs.append((module, entering[0]))

    handles = [
        module.register_forward_pre_hook(keep)
        for module in network.modules()
        if isinstance(module, _BatchNorm)
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def statistics_distance(norm: _BatchNorm, x: Tensor) -> Tensor:
    """How far what enters a batch norm is from what it knows.

    Args:
        norm: with running mean and variance of C channels.
        x: (g, b, C, …) what enters it, of g groups of b images.

    Returns:
        (g,) Euclidean distances of the means, plus those of the biased variances, of each group
        over its images and places.

    Source: VILA-Lab/SRe2L, recover/utils.py (`BNFeatureHook`). Differs: no.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    places = x.transpose(1, 2).flatten(2)  # (g, C, b · places)
    variance, mean = torch.var_mean(places, dim=2, correction=0)
    of_means: Tensor = torch.linalg.vector_norm(mean - norm.running_mean, dim=1)
    of_variances: Tensor = torch.linalg.vector_norm(variance - norm.running_var, dim=1)
    return of_means + of_variances


def _rolled(x: Tensor, offsets: Tensor) -> Tensor:
    """(B, C, H, W) images, each rolled down and right by its (B, 2) offsets."""
    offsets = offsets.to(x.device)
    H, W = x.shape[2:]
    rows = (torch.arange(H, device=x.device) - offsets[:, :1]) % H
    columns = (torch.arange(W, device=x.device) - offsets[:, 1:]) % W
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, columns[:, None, None, :].expand_as(x))
