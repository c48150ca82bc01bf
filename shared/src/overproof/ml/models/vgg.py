"""VGG-11 for small images."""

from __future__ import annotations

from torch import Tensor, nn

from overproof.catalog.models import NormParams
from overproof.ml.models.base import Network
from overproof.ml.models.layers import first_padding, norm_layer
from overproof.ml.shapes import ImageFacts

# Channels of the convolutions, in groups that a 2 × 2 pooling ends.
_VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class SmallVGG(Network):
    """3 × 3 convolutions with bias, norm and ReLU in groups that pooling ends; one linear layer.

    Five poolings make one pixel of 32. Of smaller images the last poolings are left out, as soon
    as a side is down to one pixel. Parameters are named as in the reference code.
    """

    def __init__(
        self, groups: tuple[tuple[int, ...], ...], params: NormParams, facts: ImageFacts
    ) -> None:
        super().__init__()
        padding = first_padding(facts)
        height, width = (side + 2 * (padding - 1) for side in facts.size)
        smallest = max(1, min(height, width) >> (len(groups) - 1))
        norm = norm_layer(params.norm, smallest=smallest, network="vgg-11")

        layers: list[nn.Module] = []
        channels = facts.channels
        for group in groups:
            for out in group:
                layers += [
                    nn.Conv2d(channels, out, kernel_size=3, padding=padding),
                    norm(out),
                    nn.ReLU(inplace=True),
                ]
                channels, padding = out, 1
            if min(height, width) > 1:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * height * width, facts.classes)

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, 512 · h · w) features."""
        features: Tensor = self.features(x)
        return features.flatten(1)

    def classify(self, features: Tensor) -> Tensor:
        """(B, D) features → (B, K) logits."""
        logits: Tensor = self.classifier(features)
        return logits


def vgg11(params: NormParams, facts: ImageFacts) -> SmallVGG:
    """VGG-11 with 9.2 million parameters.

    Raises:
        ShapeError: instance norm on images below 32 pixels a side.

    Source: arXiv:1409.1556; VICO-UoE/DatasetCondensation, networks.py. Differs: see `SmallVGG`.
    """
    return SmallVGG(_VGG11, params, facts)
