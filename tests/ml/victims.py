"""A network and real images to attack, shared by the reference tests of attacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from overproof.catalog.attacks import ATTACKS
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.datasets.base import load
from overproof.ml.models.base import build
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe


@lru_cache(maxsize=1)
def digits_victim() -> tuple[nn.Module, Tensor, Tensor]:
    """A ConvNet of width 8 in eval mode, right on most of the 200 test digits beside it."""
    data = load(DatasetSpec(name="digits", subset_per_class=60, test_subset_per_class=20), None)
    recipe = Recipe(
        epochs=12,
        learning_rate=0.05,
        momentum=0.9,
        weight_decay=0.0,
        batch_size=50,
    )
    training = Training(
        [build(PluginRef(name="convnet", params={"width": 8, "depth": 2}), data.facts, 0)],
        [0],
        data.train_images,
        data.train_labels,
        recipe,
        means=Means.EAGER,
        device=torch.device("cpu"),
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    network = training.networks()[0].eval().requires_grad_(False)
    return network, pixels_of(data.test_images), data.test_labels


def an_attack(name: str, seed: int = 0, **params: Any) -> Attack[Any]:
    """The attack of the catalog called `name`."""
    made: Attack[Any] = ATTACKS.load(name)(
        ATTACKS.resolve(PluginRef(name=name, params=params)), seed=seed
    )
    return made


class Linear(nn.Module):
    """Logits of D pixels: a matrix and an offset."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class FewClasses(nn.Module):
    """The first K logits of a network."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.network = network
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)[:, : self.classes]
        return logits


class Scaled(nn.Module):
    """Logits times a factor: the same predictions, other gradients of the cross entropy."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.network = network
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.factor * self.network(x)
        return logits


def linear_problem(classes: int, seed: int = 0) -> tuple[Linear, Tensor, Tensor]:
    """A linear network and 40 images far from the borders of the box, labelled as it says."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, 12, generator=generator)
    model = Linear(weight, -0.5 * weight.sum(dim=1))
    x = 0.4 + 0.2 * torch.rand(40, 3, 2, 2, generator=generator)
    return model, x, model(x).argmax(dim=1)


def rows_of(part: Tensor, whole: Tensor) -> Tensor:
    """Numbers of the rows of `whole` that `part` consists of; the rows are all different."""
    return (part.flatten(1)[:, None] == whole.flatten(1)[None]).all(dim=2).int().argmax(dim=1)


@contextmanager
def drawing(draws: Tensor) -> Iterator[None]:
    """Inside, `torch.rand` returns `draws`, which must have the shape that is asked for."""

    def rand(*shape: Any, **_: Any) -> Tensor:
        asked = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        assert tuple(draws.shape) == asked
        return draws.clone()

    with patch.object(torch, "rand", rand):
        yield
