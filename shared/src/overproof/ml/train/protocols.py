"""Protocols as recipes: what to do in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

from overproof.catalog.protocols import ProtocolParams
from overproof.ml.augment import dsa


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD on hard labels with one drop of the learning rate.

    Attributes:
        epochs: how many are run.
        drop_at: the first epoch, from 0, with a tenth of the learning rate and fresh momentum.
        learning_rate, momentum, weight_decay: of SGD.
        batch_size: images a step, in an order drawn anew each epoch; the last batch is smaller.
        families: augmentations that every batch draws one from; empty for none.
    """

    epochs: int
    drop_at: int
    learning_rate: float
    momentum: float
    weight_decay: float
    batch_size: int
    families: tuple[str, ...]

    def learning_rate_at(self, epoch: int) -> float:
        """Learning rate of `epoch`, counted from 0."""
        return self.learning_rate * (0.1 if epoch >= self.drop_at else 1.0)


def hard_label(params: ProtocolParams, *, mirrors: bool) -> Recipe:
    """The protocol of DC, DSA and DM.

    With E epochs in `params` E + 1 are run, as in the reference code, and the learning rate drops
    after epoch E // 2 + 1, counted from 0, where the reference makes a new optimizer and so
    forgets its momentum.

    Args:
        params: from the catalog of protocols.
        mirrors: whether a mirrored image keeps its class; `auto` augmentation flips only then.

    Source: VICO-UoE/DatasetCondensation, utils.py, evaluate_synset. Differs: no.
    """
    return Recipe(
        epochs=params.epochs + 1,
        drop_at=params.epochs // 2 + 2,
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        families=dsa.strategy_of(params.strategy, mirrors=mirrors),
    )
