"""The core of trajectory matching: how far a student ends from an expert, and what to change.

A student starts at a snapshot φ₀ of an expert and takes J steps of SGD on synthetic images,
φⱼ₊₁ = φⱼ - β gⱼ. The loss is |φ_J - φ*|² / |φ₀ - φ*|² for a later snapshot φ*.

Its gradient needs no graph through all steps. With λ_J = 2 (φ_J - φ*) / |φ₀ - φ*|² and, backwards
in time, λⱼ = λⱼ₊₁ - β ∂⟨λⱼ₊₁, gⱼ⟩ / ∂φⱼ, the part of step j is -β ∂⟨λⱼ₊₁, gⱼ⟩ / ∂images and
-⟨λⱼ₊₁, gⱼ⟩ for β. That is exact, at the memory of one step and J parameter vectors.

Source: arXiv:2203.11932, equations 3 and 4; for the truncation arXiv:2211.10586, equation 9.
Differs: the exact gradient by this recursion instead of unrolled autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from overproof.ml.augment import dsa
from overproof.ml.models.base import Network


class FlatNetwork:
    """A network as a function of one vector of its parameters, in the order of `parameters()`.

    Args:
        network: without batch statistics; its own parameters are never read.
    """

    def __init__(self, network: Network) -> None:
        self._network = network.requires_grad_(False)
        self._shapes = {name: each.shape for name, each in network.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]

    @property
    def count(self) -> int:
        """P, the number of parameters."""
        return sum(self._sizes)

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(P,) parameters and (B, C, H, W) normalised images → (B, K) logits."""
        parts = torch.split(flat, self._sizes)
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        made: Tensor = functional_call(self._network, named, (x,))
        return made


@dataclass(frozen=True)
class InnerStep:
    """One step of the student.

    Attributes:
        rows: (B,) int64, the synthetic images of its batch, each at most once; on their device.
        drawn: their augmentation.
    """

    rows: Tensor
    drawn: dsa.Draw


@dataclass(frozen=True)
class Match:
    """The loss of a stretch of trajectory and its gradients; no history.

    Attributes:
        loss: () relative squared distance at the end; 1 for a student that stood still.
        images: (N, C, H, W).
        labels: (N, K), None for labels that are not learned.
        rate: () by the student's learning rate.
    """

    loss: Tensor
    images: Tensor
    labels: Tensor | None
    rate: Tensor


@dataclass(frozen=True)
class Lesson:
    """What a student learns from.

    Attributes:
        images: (N, C, H, W) normalised.
        labels: (N,) int64 classes, or (N, K) logits whose softmax are soft labels.
        learns_labels: whether gradients by the logits are wanted.
    """

    images: Tensor
    labels: Tensor
    learns_labels: bool = False

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels of some rows; copies without history."""
        return self.images.detach()[rows], self.labels.detach()[rows]


def match(
    network: FlatNetwork,
    lesson: Lesson,
    steps: Sequence[InnerStep],
    *,
    start: Tensor,
    goal: Tensor,
    rate: Tensor,
    exact: bool = True,
) -> Match:
    """Lead a student from `start` and see how near `goal` it comes.

    Args:
        network: the architecture of student and expert.
        lesson: the synthetic images.
        steps: of the student, at least one.
        start: (P,) a snapshot of an expert.
        goal: (P,) a later one, that differs.
        rate: () β, the student's learning rate.
        exact: False freezes λ at its last value, as TESLA does: the influence of the images on
            later steps by way of the parameters is dropped. Equal for a single step.
    """
    flat, path = start, []
    for step in steps:
        path.append(flat)
        parameters = flat.detach().requires_grad_(True)
        gradient = _gradient(network, parameters, *lesson.batch(step.rows), step.drawn)
        flat = flat - rate * gradient
    scale = (start - goal).square().sum()
    loss = (flat - goal).square().sum() / scale
    weight = 2 * (flat - goal) / scale

    by_images = torch.zeros_like(lesson.images)
    by_labels = torch.zeros_like(lesson.labels) if lesson.learns_labels else None
    by_rate = torch.zeros_like(rate)
    for step, before in zip(reversed(steps), reversed(path), strict=True):
        x, y = lesson.batch(step.rows)
        parameters = before.detach().requires_grad_(True)
        sources = [x.requires_grad_(True)]
        if by_labels is not None:
            sources.append(y.requires_grad_(True))
        if exact:
            sources.append(parameters)
        gradient = _gradient(network, parameters, x, y, step.drawn, keeps_graph=True)
        along = weight @ gradient
        changes = list(torch.autograd.grad(-rate * along, sources))
        by_rate -= along.detach()
        by_images.index_add_(0, step.rows, changes[0])
        if by_labels is not None:
            by_labels.index_add_(0, step.rows, changes[1])
        if exact:
            weight = weight + changes[-1]
    return Match(loss=loss, images=by_images, labels=by_labels, rate=by_rate)


def _gradient(
    network: FlatNetwork,
    parameters: Tensor,
    x: Tensor,
    y: Tensor,
    drawn: dsa.Draw,
    *,
    keeps_graph: bool = False,
) -> Tensor:
    """(P,) gradient of the student's loss by its parameters."""
    targets = y.softmax(dim=1) if y.is_floating_point() else y
    loss = functional.cross_entropy(network.logits(parameters, dsa.apply(x, drawn)), targets)
    (gradient,) = torch.autograd.grad(loss, parameters, create_graph=keeps_graph)
    return gradient
