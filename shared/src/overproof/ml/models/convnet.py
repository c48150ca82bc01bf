"""ConvNet, the reference network of data set distillation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from overproof.catalog.models import ConvNetParams, ConvNorm
from overproof.errors import ShapeError
from overproof.ml.models.base import Network
from overproof.ml.models.layers import first_padding, instance_norm
from overproof.ml.shapes import ImageFacts

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "sigmoid": nn.Sigmoid,
    "leaky-relu": lambda: nn.LeakyReLU(0.01),
    "swish": nn.SiLU,
}
_POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "avg": lambda: nn.AvgPool2d(2),
    "max": lambda: nn.MaxPool2d(2),
}


class ConvNet(Network):
    """`depth` blocks of 3 × 3 convolution, norm, activation and 2 × 2 pooling; one linear layer.

    Parameters are named as in the reference code (`features.<i>`, `classifier`), so its
    checkpoints load. Features are the flattened output of the last pooling, in order C, H, W.

    Args:
        params: width, depth and the kinds of layers.
        facts: the images; grey ones of 28 × 28 pixels are padded to 32 × 32 by the first layer.

    Raises:
        ShapeError: `depth` poolings leave nothing of the image.

    Source: arXiv:2006.05929, section 4.1; VICO-UoE/DatasetCondensation, networks.py. Differs: no.
    """

    def __init__(self, params: ConvNetParams, facts: ImageFacts) -> None:
        super().__init__()
        padding = first_padding(facts)
        height, width = (side + 2 * (padding - 1) for side in facts.size)
        halvings = 0 if params.pooling == "none" else params.depth
        if min(height, width) >> halvings == 0:
            raise ShapeError(
                f"convnet of depth {params.depth} is too deep for images of "
                f"{facts.size[0]} × {facts.size[1]} pixels; "
                f"use a depth of at most {min(height, width).bit_length() - 1}"
            )

        layers: list[nn.Module] = []
        channels = facts.channels
        for _ in range(params.depth):
            layers += [
                nn.Conv2d(channels, params.width, kernel_size=3, padding=padding),
                *_norm(params.norm, params.width, (height, width)),
                _ACTIVATIONS[params.activation](),
            ]
            if params.pooling != "none":
                layers.append(_POOLINGS[params.pooling]())
                height, width = height // 2, width // 2
            channels, padding = params.width, 1
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(params.width * height * width, facts.classes)

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, width · h · w) features."""
        features: Tensor = self.features(x)
        return features.flatten(1)

    def classify(self, features: Tensor) -> Tensor:
        """(B, D) features → (B, K) logits."""
        logits: Tensor = self.classifier(features)
        return logits


def _norm(kind: ConvNorm, channels: int, size: tuple[int, int]) -> list[nn.Module]:
    match kind:
        case "instance":
            return [instance_norm(channels)]
        case "batch":
            return [nn.BatchNorm2d(channels)]
        case "layer":
            return [nn.LayerNorm([channels, *size])]
        case "group":
            if channels % 4:
                raise ShapeError(f"group norm has 4 groups; a width of {channels} does not divide")
            return [nn.GroupNorm(4, channels)]
        case "none":
            return []
