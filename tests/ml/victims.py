"""A network and real images to attack, shared by the reference tests of attacks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from overproof.catalog.attacks import ATTACKS
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.datasets.base import load
from overproof.ml.models.base import BodyAndHead, Normalized, build
from overproof.ml.seeding import seeded_init
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe


def convnet(facts: ImageFacts, *, width: int, depth: int) -> Normalized:
    """The ConvNet of the catalog, with instance norm."""
    network = PluginRef(name="convnet", params={"width": width, "depth": depth})
    return build(network, facts, 0)


def small_resnet(facts: ImageFacts, *, width: int = 16) -> Normalized:
    """A ResNet with batch norm, much narrower than those of the catalog."""

    def make() -> Normalized:
        body = nn.Sequential(
            nn.Conv2d(facts.channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            BasicBlock(width, width),
            BasicBlock(width, 2 * width, stride=2, downsample=_shortcut(width, 2 * width)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        return Normalized(BodyAndHead(body, nn.Linear(2 * width, facts.classes)), facts)

    return seeded_init(make, 0, "small resnet")


def _shortcut(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride=2), nn.BatchNorm2d(outside))


def trained(
    network: Normalized, images: Tensor, labels: Tensor, *, epochs: int, learning_rate: float = 0.05
) -> nn.Module:
    """`network` in eval mode after the product's training on (N, C, H, W) uint8 images."""
    recipe = Recipe(
        epochs=epochs,
        learning_rate=learning_rate,
        momentum=0.9,
        weight_decay=0.0,
        batch_size=50,
    )
    training = Training(
        [network], [0], images, labels, recipe, means=Means.EAGER, device=torch.device("cpu")
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    return training.networks()[0].eval().requires_grad_(False)


@lru_cache(maxsize=3)
def digits_victim(kind: str = "convnet-8") -> tuple[nn.Module, Tensor, Tensor]:
    """A network in eval mode, right on most of the 200 test digits beside it.

    Args:
        kind: `convnet-8` or `convnet-16`, with instance norm, or `resnet`, with batch norm.
    """
    data = load(DatasetSpec(name="digits", subset_per_class=60, test_subset_per_class=20), None)
    if kind == "resnet":
        made = small_resnet(data.facts, width=8)
    else:
        made = convnet(data.facts, width=int(kind.rpartition("-")[2]), depth=2)
    network = trained(made, data.train_images, data.train_labels, epochs=12)
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
