"""Protocols that train teachers, and those that train towards what a teacher says, as recipes."""

from __future__ import annotations

from dataclasses import replace

from overproof.catalog.teaching import ReplayParams, SoftLabelParams, TeacherProtocolParams
from overproof.ml.augment import dsa
from overproof.ml.train.augmentation import Augmentation
from overproof.ml.train.losses import Loss
from overproof.ml.train.protocols import hard_label
from overproof.ml.train.recipe import Recipe


def squeeze(params: TeacherProtocolParams, *, mirrors: bool) -> Recipe:
    """The protocol of teachers.

    Args:
        params: from the catalog of protocols.
        mirrors: whether a mirrored image keeps its class; `auto` augmentation flips only then.

    Source: VILA-Lab/SRe2L, squeeze_cifar.py. Differs: shifted images show the mean colour at their
    borders, where the code shows black.
    """
    auto = ("crop", "flip") if mirrors else ("crop",)
    is_auto = params.strategy == "auto"
    families = auto if is_auto else dsa.strategy_of(params.strategy, mirrors=mirrors)
    return Recipe(
        epochs=params.epochs,
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        cosine=1.0,
        warmup=params.warmup_epochs,
        augmentation=Augmentation(families, composed=True),
    )


def soft_label(params: SoftLabelParams, *, mirrors: bool) -> Recipe:
    """As `protocols.hard_label`, with the divergence from one soft label for each image.

    Args:
        params: from the catalog of protocols.
        mirrors: whether a mirrored image keeps its class; `auto` augmentation flips only then.
    """
    loss = Loss("kl", temperature=params.temperature)
    return replace(hard_label(params, mirrors=mirrors), loss=loss)


def replay(params: ReplayParams, *, mirrors: bool) -> Recipe:
    """Protocols that replay labelled views, which bring their augmentation along.

    Args:
        params: from the catalog of protocols.
        mirrors: of no consequence: the views are mirrored already.

    Source: VILA-Lab/SRe2L, train_FKD.py; LINs-lab/RDED, validation/main.py. Differs: no.
    """
    return Recipe(
        epochs=params.epochs,
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        optimizer=params.optimizer,
        decays_all=params.optimizer == "sgd",
        cosine=params.cosine,
        warmup=params.warmup_epochs,
        loss=Loss("kl", temperature=params.temperature, scaled=params.scales_loss),
    )
