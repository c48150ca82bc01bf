"""Passes of images through a network, class by class: mean features and gradients.

Real images are most of the work of matching, and nothing of theirs is differentiated twice. So on
a CPU they go in pieces that stay near its caches, and compiled where that pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from overproof.ml.distill.base import Problem
from overproof.ml.memory import NetworkCosts
from overproof.ml.models.base import Network
from overproof.ml.train.means import (
    Means,
    compiled_or_eager,
    has_batch_statistics,
    multiplications,
    rows_near_caches,
)


def class_features(network: Network, x: Tensor) -> Tensor:
    """(K, n, C, H, W) normalised images → (K, n, D) features."""
    classes, count = x.shape[:2]
    return network.embed(x.flatten(0, 1)).view(classes, count, -1)


def class_gradients(
    network: nn.Module, names: Sequence[str], x: Tensor, labels: Tensor
) -> list[Tensor]:
    """Gradients of each class's mean cross entropy by some parameters.

    Args:
        network: normalised images → logits; images must not influence each other.
        names: of the parameters, with respect to which the gradients are taken.
        x: (K, n, C, H, W) normalised images of K classes; the result is differentiable by them.
        labels: (K,) int64.

    Returns:
        For each name, (K, *shape of the parameter).
    """
    parameters = dict(network.named_parameters())
    if len(x) == 1:
        logits = network(x[0])
        loss = functional.cross_entropy(logits, labels.expand(len(logits)))
        chosen = [parameters[name] for name in names]
        gradients = torch.autograd.grad(loss, chosen, create_graph=x.requires_grad)
        return [gradient.unsqueeze(0) for gradient in gradients]

    def loss_of(chosen: Mapping[str, Tensor], images: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network, {**fixed, **chosen}, (images,))
        return functional.cross_entropy(logits, label.expand(len(images)))

    fixed = {name: tensor.detach() for name, tensor in parameters.items()}
    fixed |= dict(network.named_buffers())
    by_name = vmap(grad(loss_of), in_dims=(None, 0, 0))(
        {name: fixed[name] for name in names}, x, labels
    )
    return [by_name[name] for name in names]


class RealPasses:
    """Mean features and gradients on real images, without history.

    How they are computed follows from the work and the device alone, never from a clock: pieces
    and compilers round differently, and on a CPU the same seed gives the same bytes.

    Args:
        problem: device and facts of the images.
        network: one of those that will be asked for, of any weights.
        images: that go through networks in the whole run.
        names: of the parameters whose gradients are wanted; None for features.

    Attributes:
        means: eager or compiled.
        reason: for that, in a few words.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        *,
        images: int,
        names: Sequence[str] | None = None,
    ) -> None:
        facts = problem.dataset.facts
        self._names = names
        self._rows: int | None = None
        self.means, self.reason = Means.EAGER, "batch statistics"
        if problem.device.type != "cpu":
            self.reason = "classes together on the device"
        elif not has_batch_statistics(network):
            self._rows = rows_near_caches(network, facts)
            # A backward pass costs two forward ones.
            work = (1 if names is None else 3) * multiplications(network, facts) * images
            self.means, self.reason = compiled_or_eager(work)
        self._sums = _Sums(network, names)
        if self.means is Means.COMPILED:
            self._sums.compile()

    def bytes_at_once(self, costs: NetworkCosts, rows: int, classes: int) -> int:
        """What a pass of `rows` images of each of some classes takes at its peak."""
        each = costs.first if self._names is not None else costs.largest
        together = classes * rows if self._rows is None else min(self._rows, rows)
        return together * (each + 2 * costs.largest)

    def mean_features(self, network: Network, x: Tensor) -> Tensor:
        """(K, n, C, H, W) normalised images → (K, D)."""
        if self._rows is None:
            with torch.no_grad():
                return class_features(network, x).mean(dim=1)
        with torch.no_grad():
            return torch.stack([self._by_pieces(network, images)[0] for images in x])

    def mean_gradients(self, network: Network, x: Tensor, labels: Tensor) -> list[Tensor]:
        """As `class_gradients` for (K, n, C, H, W) normalised images and (K,) labels."""
        assert self._names is not None
        if self._rows is None:
            made = class_gradients(network, self._names, x, labels)
            return [gradient.detach() for gradient in made]
        by_class = [
            self._by_pieces(network, images, label) for images, label in zip(x, labels, strict=True)
        ]
        return [torch.stack(each) for each in zip(*by_class, strict=True)]

    def _by_pieces(
        self, network: Network, images: Tensor, label: Tensor | None = None
    ) -> list[Tensor]:
        """Means over (n, C, H, W) images of one class."""
        total: list[Tensor] = []
        for piece in torch.split(images, self._rows or len(images)):
            labels = None if label is None else label.expand(len(piece))
            made = self._sums(network, piece, labels)
            total = [a + b for a, b in zip(total, made, strict=True)] if total else made
        return [each / len(images) for each in total]


class _Sums:
    """Sums over images: of their features, or of the gradients of their cross entropies."""

    def __init__(self, network: Network, names: Sequence[str] | None) -> None:
        self._names = names
        self._template = _Whole(deepcopy(network), classifies=names is not None)
        self._call: Any = self._pass

    def compile(self) -> None:
        """Compile the passes: once for whole pieces and once for a smaller last one."""
        self._call = torch.compile(self._pass, dynamic=False)

    def __call__(self, network: Network, x: Tensor, labels: Tensor | None = None) -> list[Tensor]:
        # Parameters are arguments of the compiled function: as attributes of their module they
        # would be guarded, and each network would be compiled anew until the recompile limit.
        chosen = set(self._names or ())
        parameters = {
            f"network.{name}": each.detach().requires_grad_(name in chosen)
            for name, each in network.named_parameters()
        }
        parameters |= {f"network.{name}": each for name, each in network.named_buffers()}
        made = self._call(parameters, x, labels)
        if self._names is None:
            return [made]
        wanted = [parameters[f"network.{name}"] for name in self._names]
        return list(torch.autograd.grad(made, wanted))

    def _pass(
        self, parameters: Mapping[str, Tensor], x: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        made: Tensor = functional_call(self._template, dict(parameters), (x,))
        if labels is None:
            return made.sum(dim=0)
        return functional.cross_entropy(made, labels, reduction="sum")


class _Whole(nn.Module):
    """A network as a module whose call is its logits or its features."""

    def __init__(self, network: Network, *, classifies: bool) -> None:
        super().__init__()
        self.network = network
        self._classifies = classifies

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x) if self._classifies else self.network.embed(x)
        return logits
