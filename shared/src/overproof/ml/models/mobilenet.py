"""MobileNetV2 for small images."""

from __future__ import annotations

from torch import nn
from torchvision.models.mobilenetv2 import MobileNetV2

from overproof.catalog.models import MobileNetParams
from overproof.ml.models.base import BodyAndHead
from overproof.ml.shapes import ImageFacts

# Expansion, channels, blocks, stride; on large images the second stage has stride 2.
_STAGES = [
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]


def mobilenet_v2(params: MobileNetParams, facts: ImageFacts) -> BodyAndHead:
    """MobileNetV2 with stride 1 in stem and second stage.

    Parameters of the body have torchvision's names. Features are the average over the last map,
    1,280 numbers at multiplier 1.

    Source: arXiv:1801.04381; torchvision, models/mobilenetv2.py. Differs: the strides, as is usual
    on CIFAR; no dropout, which would draw from torch's global generator.
    """
    body = MobileNetV2(
        num_classes=facts.classes,
        width_mult=params.width_multiplier,
        inverted_residual_setting=_STAGES,
        dropout=0.0,
    )
    width = body.features[0][0].out_channels
    stem = nn.Conv2d(facts.channels, width, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out")
    body.features[0][0] = stem
    head, body.classifier = body.classifier[1], nn.Identity()
    return BodyAndHead(body, head)
