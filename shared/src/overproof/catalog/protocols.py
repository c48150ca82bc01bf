"""Training protocols by name: how a network is trained on a set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from overproof.catalog.fields import Count, Fraction, Positive, Strategy, StrategyOfMethod
from overproof.catalog.teaching import TEACHING_PROTOCOLS, TaughtParams
from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.spec import PluginRef, Scalar

# Whose weights are attacked and shown: those after the last epoch, those that did best on examples
# held out of training, or, as published numbers have it, those that did best on the test set.
Selection = Literal["last", "validation", "paper"]

AtLeastZero = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
_RATE = r"\d*\.?\d+(e-?\d+)?"
Rates = Annotated[str, Field(pattern=rf"^({_RATE}( {_RATE})*)?$")]


class ProtocolParams(Params):
    """SGD with momentum; learning rate ×0.1 at half of the epochs, momentum reset there."""

    epochs: Count = 300
    learning_rate: Positive = 0.01
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    batch_size: Count = 256
    strategy: Strategy = "none"


class DsaProtocolParams(ProtocolParams):
    """As DC, with augmentation and more epochs."""

    epochs: Count = 1_000
    strategy: Strategy = "auto"


class DatmProtocolParams(DsaProtocolParams):
    """As DSA, in smaller batches."""

    batch_size: Count = 128


class IdcProtocolParams(ProtocolParams):
    """SGD; learning rate ×0.2 at two thirds and at five sixths of the epochs.

    `strategy`: families that are applied one after another; `auto` is flip, colour, and one of
    crop, scale and rotation, without flip where mirroring changes the class. For ImageNet the
    authors take 3,000 epochs for 1 decoded image per class, 2,000 up to 10, 1,500 up to 50, 1,000
    up to 200, 500 up to 500, 300 above.
    """

    epochs: Count = 1_000
    batch_size: Count = 64
    strategy: Strategy = "auto"
    cutmix_probability: Probability = 0.5


class SelectedParams(DsaProtocolParams):
    """Training that is looked at `looks` times, evenly spread, of which `selection` picks one."""

    selection: Selection = "last"
    looks: Count = 4


class DdrProtocolParams(SelectedParams):
    """SGD; learning rate ×0.1 at half of the epochs; images in the order in which they are stored.

    The weights that did best on the test set are kept, as in the published code. `strategy`: the
    benchmark augments where the method did; `method` stands for the strategy of the method that a
    set was distilled by, and for none where there is none.
    """

    strategy: StrategyOfMethod = "auto"

    selection: Selection = "paper"
    looks: Count = 20


class DdkProtocolParams(SelectedParams):
    """Hard labels and a learning rate that is searched for distilled sets, or what a set brings.

    `labels`: `hard` are classes, whatever soft labels a set has; `set` are those that it brings;
    `teacher` are those too, and for sets that bring none one label of the teacher for each image.
    `learning_rates`: tried on the distilled set, and judged by training images that are held out;
    empty for none. Whole sets take `learning_rate`, as do sets that bring one, with their labels.
    `schedule`: `step` is ×0.1 after every `step_epochs`, `cosine` ends near 0, `half-cosine` near
    half. `temperature`, `scales_loss` and `hard_weight`: see `ml.train.losses`.
    """

    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rates: Rates = "0.001 0.005 0.01 0.05 0.1"
    schedule: Literal["step", "cosine", "half-cosine"] = "step"
    step_epochs: Count = 500
    strategy: Strategy = "none"
    cutmix_probability: Probability = 0.0
    mixup_alpha: AtLeastZero = 0.0
    labels: Literal["hard", "set", "teacher"] = "hard"
    loss: Literal["cross-entropy", "kl", "mse"] = "cross-entropy"
    temperature: Positive = 1.0
    scales_loss: bool = False
    hard_weight: AtLeastZero = 0.0


PROTOCOLS: Registry = Registry("protocols")

_OF_METHOD = "method"

for _info in (
    PluginInfo(
        name="dc",
        target="overproof.ml.train.protocols:hard_label",
        params=ProtocolParams,
        summary="300 epochs without augmentation",
        source="Zhao et al., arXiv:2006.05929; VICO-UoE/DatasetCondensation, utils.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="dsa",
        target="overproof.ml.train.protocols:hard_label",
        params=DsaProtocolParams,
        summary="1,000 epochs with differentiable augmentation, parameters drawn for each image",
        source="Zhao & Bilen, arXiv:2102.08259; VICO-UoE/DatasetCondensation, utils.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="mtt",
        target="overproof.ml.train.protocols:hard_label",
        params=DsaProtocolParams,
        summary="as dsa, at the learning rate and towards the soft labels that a set brings",
        source="Cazenavette et al., arXiv:2203.11932; mtt-distillation, utils.py",
        needs="overproof[ml]",
        aliases=("tesla",),
    ),
    PluginInfo(
        name="datm",
        target="overproof.ml.train.protocols:hard_label",
        params=DatmProtocolParams,
        summary="as mtt, in batches of 128",
        source="Guo et al., arXiv:2310.05773; NUS-HPC-AI-Lab/DATM, utils_baseline.py",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="idc",
        target="overproof.ml.train.protocols:mixed_label",
        params=IdcProtocolParams,
        summary="1,000 epochs with several augmentations one after another and CutMix",
        source="Kim et al., arXiv:2205.14959; snu-mllab/Efficient-Dataset-Condensation, train.py",
        needs="overproof[ml]",
        aliases=("dream",),
    ),
    PluginInfo(
        name="ddr",
        target="overproof.ml.train.protocols:unified",
        params=DdrProtocolParams,
        summary="1,000 epochs in stored order, best on the test set: the unified one of "
        "DD-RobustBench",
        source="Wu et al., arXiv:2403.13322, section IV",
        needs="overproof[ml]",
    ),
    PluginInfo(
        name="ddk",
        target="overproof.ml.train.protocols:ranking",
        params=DdkProtocolParams,
        summary="hard labels at a searched learning rate, or any labels, losses and mixing: "
        "those of DD-Ranking",
        source="Li et al., arXiv:2505.13300; NUS-HPC-AI-Lab/DD-Ranking",
        needs="overproof[ml]",
    ),
    *TEACHING_PROTOCOLS,
):
    PROTOCOLS.add(_info)


def teaching_of(protocol: PluginRef) -> TaughtParams | None:
    """How a teacher labels what is trained on by `protocol`; None where none is asked."""
    params = PROTOCOLS.resolve(protocol)
    if isinstance(params, TaughtParams):
        return params
    if isinstance(params, DdkProtocolParams) and params.labels == "teacher":
        return TaughtParams(batch_size=params.batch_size)
    return None


def for_method(protocol: PluginRef, method: PluginRef | None) -> PluginRef:
    """The canonical `protocol` with the strategy of the canonical `method`, if it asks for that."""
    if protocol.params.get("strategy") != _OF_METHOD:
        return protocol
    strategy = method.params.get("strategy", "none") if method is not None else "none"
    return PROTOCOLS.canonical(
        PluginRef(name=protocol.name, params={**protocol.params, "strategy": strategy})
    )


# What parameters that augment are set to, so that images are seen as they are.
_NEUTRAL: dict[str, Scalar] = {
    "strategy": "none",
    "cutmix_probability": 0.0,
    "mixup_alpha": 0.0,
    "mixing": "none",
    "smallest_crop": 1.0,
    "shift": 0,
    "shuffled_tiles": 1,
}


def without_augmentation(protocol: PluginRef) -> PluginRef:
    """The canonical `protocol` with every augmentation of images switched off."""
    plain = {name: _NEUTRAL.get(name, value) for name, value in protocol.params.items()}
    return PROTOCOLS.canonical(PluginRef(name=protocol.name, params=plain))
