"""Trains the networks of several seeds on one set of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from overproof.errors import NonFiniteLoss, ShapeError
from overproof.ml.models.base import Network, Normalized
from overproof.ml.seeding import generator
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.fleet import Fleet, LoopFleet, StackedFleet
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe
from overproof.ml.train.soft_labels import SoftLabels

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
        targets: (N,) int64 classes, or (N, …) float32 as the loss of the recipe takes them; or soft
            labels with their views, which all networks see in one order and nothing augments.
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
        targets: Tensor | SoftLabels,
        recipe: Recipe,
        *,
        means: Means,
        device: torch.device,
    ) -> None:
        if not 0 < len(networks) == len(seeds):
            raise ShapeError(f"{len(networks)} networks and {len(seeds)} seeds do not fit")
        labelled = targets.images if isinstance(targets, SoftLabels) else len(targets)
        if not 0 < len(images) == labelled:
            raise ShapeError(f"{len(images)} images and {labelled} labels cannot be trained on")
        is_classes = isinstance(targets, Tensor) and not targets.is_floating_point()
        if recipe.augmentation.mixes and is_classes:
            raise ShapeError("classes cannot be mixed; give targets as probabilities")
        self._models = [network.to(device) for network in networks]
        self._seeds = tuple(seeds)
        self._images = images.to(device)
        self._targets = targets if isinstance(targets, SoftLabels) else targets.to(device)
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
        total = torch.zeros(len(self._seeds), device=self._device)
        for batches in self._batches(index):
            total += self._fleet.step(batches, learning_rate) * len(batches[0][1])
        return self._read(index, total / len(self._images))

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

    def _batches(self, index: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """For one step after another a batch for each network."""
        size, loss = self._recipe.batch_size, self._recipe.loss
        if isinstance(self._targets, SoftLabels):
            for pixels, logits in self._targets.replay(self._images, index, batch_size=size):
                targets = loss.targets(logits, logits)
                yield [(model.normalize(pixels), targets) for model in self._models]
            return
        orders = [self._order(seed, index) for seed in self._seeds]
        streams = [generator(seed, "augmentation", index) for seed in self._seeds]
        for start in range(0, len(self._images), size):
            yield [
                self._recipe.augmentation(
                    model.normalize(pixels_of(self._images[rows])), self._targets[rows], stream
                )
                for model, order, stream in zip(self._models, orders, streams, strict=True)
                for rows in [order[start : start + size]]
            ]

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
