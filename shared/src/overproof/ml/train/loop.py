"""Trains the networks of several seeds on one set of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from overproof.errors import NonFiniteLoss, ShapeError
from overproof.ml.models.base import Network, Normalized
from overproof.ml.seeding import generator
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.fleet import Fleet, LoopFleet, StackedFleet
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe

_READ_EVERY = 20  # epochs between two waits for a GPU


class Training:
    """Several networks trained on one set; a `Resumable` with one step an epoch.

    Each network has its own seed, which names the order of the images and the augmentation of
    every epoch. What it becomes depends neither on the networks beside it nor on when the work was
    stopped; on a CPU to the last bit.

    Args:
        networks: one for each seed, on the CPU; moved to `device` and trained in place.
        seeds: one for each network.
        images: (N, C, H, W), uint8 or float32 pixels.
        targets: (N,) int64 classes, or (N, …) float32 as the loss of the recipe takes them.
        recipe: see `recipe`.
        means: see `means.choose_means`.
        device: where to train.

    Raises:
        ShapeError: numbers of networks and seeds, or of images and targets, differ or are 0;
            classes where images are mixed.
    """

    def __init__(
        self,
        networks: Sequence[Normalized],
        seeds: Sequence[int],
        images: Tensor,
        targets: Tensor,
        recipe: Recipe,
        *,
        means: Means,
        device: torch.device,
    ) -> None:
        if not 0 < len(networks) == len(seeds):
            raise ShapeError(f"{len(networks)} networks and {len(seeds)} seeds do not fit")
        if not 0 < len(images) == len(targets):
            raise ShapeError(f"{len(images)} images and {len(targets)} labels cannot be trained on")
        if recipe.augmentation.mixes and not targets.is_floating_point():
            raise ShapeError("classes cannot be mixed; give targets as probabilities")
        self._models = [network.to(device) for network in networks]
        self._seeds = tuple(seeds)
        self._images = images.to(device)
        self._targets = targets.to(device)
        self._recipe = recipe
        self._fleet = _fleet([model.network for model in self._models], recipe, means)
        self._device = device
        self.losses: tuple[float, ...] = ()

    @property
    def total_steps(self) -> int:
        """Number of epochs."""
        return self._recipe.epochs

    def step(self, index: int) -> Mapping[str, float]:
        """Train all networks for epoch `index`.

        Raises:
            NonFiniteLoss: a network diverged; the message names its seed. On a GPU this is
                noticed up to 19 epochs late, so that the host need not wait in every epoch.
        """
        if self._recipe.restarts and index in self._recipe.milestones:
            self._fleet.forget_momentum()
        learning_rate = self._recipe.learning_rate_at(index)
        count = len(self._images)
        orders = [self._order(seed, index) for seed in self._seeds]
        streams = [generator(seed, "augmentation", index) for seed in self._seeds]

        total = torch.zeros(len(self._seeds), device=self._device)
        for start in range(0, count, self._recipe.batch_size):
            chosen = [order[start : start + self._recipe.batch_size] for order in orders]
            batches = [
                self._augmented(model, rows, stream)
                for model, rows, stream in zip(self._models, chosen, streams, strict=True)
            ]
            total += self._fleet.step(batches, learning_rate) * len(chosen[0])
        return self._read(index, total / count)

    def networks(self) -> list[Normalized]:
        """The networks with their present weights, in the order of the seeds."""
        self._fleet.networks()
        return self._models

    def state(self) -> dict[str, Tensor]:
        """Weights and momentum of all networks."""
        return self._fleet.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._fleet.load_state(state)

    def _order(self, seed: int, epoch: int) -> Tensor:
        count = len(self._images)
        if not self._recipe.shuffled:
            return torch.arange(count, device=self._device)
        return torch.randperm(count, generator=generator(seed, "order", epoch)).to(self._device)

    def _augmented(
        self, model: Normalized, rows: Tensor, stream: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        x = model.normalize(pixels_of(self._images[rows]))
        return self._recipe.augmentation(x, self._targets[rows], stream)

    def _read(self, epoch: int, losses: Tensor) -> Mapping[str, float]:
        last = epoch + 1 == self._recipe.epochs
        if self._device.type != "cpu" and epoch % _READ_EVERY and not last:
            return {}
        if not bool(losses.isfinite().all()):
            bad = [
                seed
                for seed, ok in zip(self._seeds, losses.isfinite().tolist(), strict=True)
                if not ok
            ]
            raise NonFiniteLoss(
                f"the loss of the network of seed {bad[0]} is not finite in epoch {epoch}; "
                "lower the learning rate"
            )
        self.losses = tuple(losses.tolist())
        return {"loss": float(losses.mean())}


def _fleet(networks: Sequence[Network], recipe: Recipe, means: Means) -> Fleet:
    if means is Means.STACKED:
        return StackedFleet(networks, recipe)
    return LoopFleet(networks, recipe, compiled=means is Means.COMPILED)
