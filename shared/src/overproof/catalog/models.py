"""Networks by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from overproof.core.registry import Params, PluginInfo, Registry

ConvNorm = Literal["instance", "batch", "layer", "group", "none"]


class ConvNetParams(Params):
    """The reference network of data set distillation."""

    width: Annotated[int, Field(ge=1, le=4096)] = 128
    depth: Annotated[int, Field(ge=1, le=8)] = 3
    norm: ConvNorm = "instance"
    activation: Literal["relu", "sigmoid", "leaky-relu", "swish"] = "relu"
    pooling: Literal["avg", "max", "none"] = "avg"


class NormParams(Params):
    """Networks whose only choice is the normalisation layer."""

    norm: Literal["batch", "instance"] = "batch"


class MobileNetParams(Params):
    """MobileNetV2 for small images."""

    width_multiplier: Annotated[float, Field(gt=0, le=4)] = 1.0


class TimmParams(Params):
    """Any architecture of timm, without downloaded weights."""

    architecture: str


@dataclass(frozen=True, kw_only=True)
class ForeignModelInfo(PluginInfo):
    """A network that knows nothing of us: any callable that makes a torch module.

    Attributes:
        arguments: keyword → what it must know of the images: `classes`, `channels`, `height` or
            `width`. The parameters are keywords too.
    """

    arguments: Mapping[str, str]


MODELS: Registry = Registry("models")

for _info in (
    PluginInfo(
        name="convnet",
        target="overproof.ml.models.convnet:ConvNet",
        params=ConvNetParams,
        summary="depth blocks of convolution, norm, activation, pooling; one linear layer",
        source="Gidaris & Komodakis 2018; VICO-UoE/DatasetCondensation, networks.py",
        needs="overproof[ml]",
        aliases=("convnet-d3",),
    ),
    PluginInfo(
        name="resnet-18",
        target="overproof.ml.models.resnet:resnet18",
        params=NormParams,
        summary="ResNet-18 with a 3 × 3 stem and no first pooling",
        source="He et al. 2016; CIFAR variant",
        needs="overproof[ml]",
        aliases=("resnet18",),
    ),
    PluginInfo(
        name="vgg-11",
        target="overproof.ml.models.vgg:vgg11",
        params=NormParams,
        summary="VGG-11 for small images, one linear layer",
        source="Simonyan & Zisserman 2015; VICO-UoE/DatasetCondensation, networks.py",
        needs="overproof[ml]",
        aliases=("vgg11",),
    ),
    PluginInfo(
        name="mobilenet-v2",
        target="overproof.ml.models.mobilenet:mobilenet_v2",
        params=MobileNetParams,
        summary="MobileNetV2 for small images: stride 1 in the stem and the first stage",
        source="Sandler et al. 2018; CIFAR variant",
        needs="overproof[ml]",
        aliases=("mobilenet",),
    ),
    PluginInfo(
        name="timm",
        target="overproof.ml.models.timm_models:timm_model",
        params=TimmParams,
        summary="any architecture of timm by name, initialised from the seed",
        source="huggingface/pytorch-image-models",
        needs="overproof[ml]",
    ),
):
    MODELS.add(_info)
