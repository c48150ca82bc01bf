"""Protocols as recipes: what to do in every epoch."""

from __future__ import annotations

from overproof.catalog.protocols import ProtocolParams
from overproof.ml.augment import dsa
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.recipe import Recipe


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
        milestones=(params.epochs // 2 + 2,),
        restarts=True,
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        augmentation=Augmentation(dsa.strategy_of(params.strategy, mirrors=mirrors)),
    )
