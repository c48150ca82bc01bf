"""Protocols as recipes: what to do in every epoch."""

from __future__ import annotations

from overproof.catalog.protocols import (
    DdkProtocolParams,
    DdrProtocolParams,
    IdcProtocolParams,
    ProtocolParams,
)
from overproof.catalog.teaching import SoftLabelParams
from overproof.ml.augment import dsa
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.losses import Loss
from overproof.ml.train.recipe import Recipe

_COSINE = {"step": 0.0, "cosine": 1.0, "half-cosine": 0.5}


def hard_label(params: ProtocolParams | SoftLabelParams, *, mirrors: bool) -> Recipe:
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


def mixed_label(params: IdcProtocolParams, *, mirrors: bool) -> Recipe:
    """The protocol of IDC and DREAM.

    Args:
        params: from the catalog of protocols.
        mirrors: see `hard_label`.

    Source: arXiv:2205.14959, appendix; snu-mllab/Efficient-Dataset-Condensation, test.py and
    train.py. Differs: the last weights are kept, where the published code takes the best of four
    tests on the test set.
    """
    families = dsa.strategy_of(params.strategy, mirrors=mirrors)
    if params.strategy == "auto":
        families = tuple(family for family in families if family != "cutout")
    return Recipe(
        epochs=params.epochs,
        milestones=(2 * params.epochs // 3, 5 * params.epochs // 6),
        decay=0.2,
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        augmentation=Augmentation(families, composed=True, cutmix=params.cutmix_probability),
    )


def unified(params: DdrProtocolParams, *, mirrors: bool) -> Recipe:
    """The protocol of DD-RobustBench.

    Args:
        params: from the catalog of protocols.
        mirrors: see `hard_label`.

    Source: arXiv:2403.13322, section IV; FredWU-HUST/DD-RobustBench. Differs: looks are spread
    evenly, where the published code does not say how often it tests.
    """
    return Recipe(
        epochs=params.epochs,
        milestones=(params.epochs // 2,) if params.epochs > 1 else (),
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        shuffled=False,
        augmentation=Augmentation(dsa.strategy_of(params.strategy, mirrors=mirrors)),
        selection=params.selection,
        looks=params.looks,
    )


def ranking(params: DdkProtocolParams, *, mirrors: bool) -> Recipe:
    """The protocols of DD-Ranking.

    Args:
        params: from the catalog of protocols.
        mirrors: see `hard_label`.

    Source: arXiv:2505.13300, section 4; NUS-HPC-AI-Lab/DD-Ranking, metrics/ and
    utils/train_and_eval.py. Differs: rates are judged on held-out training images and the last
    weights are kept, where the published code takes the best of both on the test set; mixing of
    images mixes their labels too.
    """
    steps = range(params.step_epochs, params.epochs, params.step_epochs)
    return Recipe(
        epochs=params.epochs,
        optimizer=params.optimizer,
        milestones=tuple(steps) if params.schedule == "step" else (),
        cosine=_COSINE[params.schedule],
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        augmentation=Augmentation(
            dsa.strategy_of(params.strategy, mirrors=mirrors),
            cutmix=params.cutmix_probability,
            mixup=params.mixup_alpha,
        ),
        loss=Loss(params.loss, params.temperature, params.scales_loss, params.hard_weight),
        selection=params.selection,
        looks=params.looks,
        rates=tuple(float(rate) for rate in params.learning_rates.split()),
        own_labels=params.labels != "hard",
    )
