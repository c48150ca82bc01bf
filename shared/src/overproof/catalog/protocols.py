"""Training protocols by name: how a network is trained on a set."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overproof.catalog.fields import Count, Fraction, Positive, Strategy
from overproof.core.registry import Params, PluginInfo, Registry


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


PROTOCOLS: Registry = Registry("protocols")

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
):
    PROTOCOLS.add(_info)
