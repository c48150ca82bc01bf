"""What to do in every epoch of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from overproof.catalog.protocols import Selection
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.losses import Loss

OptimizerName = Literal["sgd", "adamw"]

_NO_AUGMENTATION = Augmentation()
_CROSS_ENTROPY = Loss()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training of some epochs.

    Attributes:
        epochs: E, how many are run.
        learning_rate: at the start.
        momentum: of SGD; AdamW takes its own betas, 0.9 and 0.999.
        weight_decay: as a gradient in SGD, decoupled in AdamW.
        decays_all: whether vectors (biases, scales of norms) decay too.
        batch_size: images a step; the last batch of an epoch is smaller.
        optimizer: which.
        shuffled: whether images come in an order drawn anew each epoch, else as they are stored.
        milestones: epochs, from 0, from which on the rate is multiplied by `decay`.
        decay: factor at each milestone.
        restarts: whether momentum is forgotten at milestones, as by a new optimizer.
        cosine: c; the rate is multiplied by ½ (1 + cos(c π e / E)) in epoch e. 1 ends near 0, ½
            near half of the rate, 0 leaves it.
        warmup: w; in the first w epochs the rate rises linearly from a hundredth, and the cosine
            begins after them.
        augmentation: of each batch.
        loss: what is minimised.
        selection, looks: see `selection.WatchedTraining`.
        rates: learning rates to be tried first, see `search.SearchedTraining`; empty for none.
        own_labels: whether soft labels and a learning rate that come with a set are used.
    """

    epochs: int
    learning_rate: float
    momentum: float
    weight_decay: float
    batch_size: int
    optimizer: OptimizerName = "sgd"
    decays_all: bool = True
    shuffled: bool = True
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    restarts: bool = False
    cosine: float = 0.0
    warmup: int = 0
    augmentation: Augmentation = _NO_AUGMENTATION
    loss: Loss = _CROSS_ENTROPY
    selection: Selection = "last"
    looks: int = 4
    rates: tuple[float, ...] = ()
    own_labels: bool = True

    def learning_rate_at(self, epoch: int) -> float:
        """Learning rate of `epoch`, counted from 0."""
        if epoch < self.warmup:
            return self.learning_rate * (0.01 + 0.99 * epoch / self.warmup)
        passed = sum(epoch >= milestone for milestone in self.milestones)
        done = (epoch - self.warmup) / max(1, self.epochs - self.warmup)
        wave = 0.5 * (1 + math.cos(self.cosine * math.pi * done))
        return self.learning_rate * self.decay**passed * wave
