"""ResNet-18 for small images."""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from overproof.catalog.models import NormParams
from overproof.ml.models.base import BodyAndHead
from overproof.ml.models.layers import norm_layer
from overproof.ml.shapes import ImageFacts


def resnet18(params: NormParams, facts: ImageFacts) -> BodyAndHead:
    """ResNet-18 with a 3 × 3 stem of stride 1 and no pooling before the first stage.

    Parameters of the body have torchvision's names. Features are the average over the last map,
    512 numbers.

    Raises:
        ShapeError: instance norm on images of at most 8 pixels a side.

    Source: arXiv:1512.03385; torchvision, models/resnet.py. Differs: the stem, as is usual on
    CIFAR; instance norm is `GroupNorm(C, C)`.
    """
    smallest = -(-min(facts.size) // 8)
    norm = norm_layer(params.norm, smallest=smallest, network="resnet-18")
    body = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=facts.classes, norm_layer=norm)
    body.conv1 = nn.Conv2d(facts.channels, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    body.maxpool = nn.Identity()
    head, body.fc = body.fc, nn.Identity()
    return BodyAndHead(body, head)
