"""What several networks share: the norm of single images and the padding of 28 × 28 ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from overproof.errors import ShapeError
from overproof.ml.shapes import ImageFacts


def instance_norm(channels: int) -> nn.Module:
    """Normalisation of each channel of each image, with a learned scale and offset.

    `nn.InstanceNorm2d` has no scale and offset by default; the reference networks have both.
    """
    return nn.GroupNorm(channels, channels)


def norm_layer(
    kind: Literal["batch", "instance"], *, smallest: int, network: str
) -> Callable[[int], nn.Module]:
    """A factory of norm layers by number of channels.

    Args:
        kind: over the batch, or over each image.
        smallest: shortest side, in pixels, of any map that is normalised.
        network: what the message calls the network.

    Raises:
        ShapeError: instance norm of a single pixel, which would erase all that it knows.
    """
    if kind == "batch":
        return nn.BatchNorm2d
    if smallest < 2:
        raise ShapeError(
            f"{network} with instance norm shrinks these images to single pixels; use norm: batch"
        )
    return instance_norm


def first_padding(facts: ImageFacts) -> int:
    """Padding of the first 3 × 3 convolution: 3 makes 32 × 32 of grey 28 × 28 images."""
    return 3 if facts.channels == 1 and facts.size == (28, 28) else 1
