"""What a network must know of its images, and checks of the arrays that people pass in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.errors import ShapeError


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """The images that a network is made for.

    Attributes:
        channels: 1 for grey, 3 for colour.
        size: (H, W) in pixels.
        classes: number of classes.
        mean, std: per channel, of pixels in [0, 1].
    """

    channels: int
    size: tuple[int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if min(self.channels, *self.size, self.classes) < 1:
            raise ShapeError(f"image facts must be positive: {self}")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ShapeError(
                f"{self.channels} channels need as many means and deviations, "
                f"not {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"standard deviations must be positive, not {self.std}")


def check_images(x: Tensor, *, facts: ImageFacts | None = None, what: str = "images") -> None:
    """Refuse what is not a batch of floating point images (B, C, H, W).

    Args:
        x: any tensor.
        facts: if given, C, H and W must be theirs.
        what: what the message calls `x`.

    Raises:
        ShapeError: wrong number of dimensions, wrong sizes or an integer dtype.
    """
    if x.ndim != 4:
        raise ShapeError(f"{what} must be (B, C, H, W), not {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ShapeError(f"{what} must be floating point in [0, 1], not {x.dtype}; divide by 255")
    if facts is not None and tuple(x.shape[1:]) != (facts.channels, *facts.size):
        expected = (facts.channels, *facts.size)
        raise ShapeError(f"{what} must be (B, *{expected}), not {tuple(x.shape)}")


def check_unit_range(x: Tensor, *, what: str = "images") -> None:
    """Refuse pixels outside [0, 1]. Reads the values, so it waits for the device.

    Raises:
        ValueError: a value is NaN or outside.
    """
    if x.numel() == 0:
        return
    low, high = (float(bound) for bound in torch.aminmax(x.detach()))
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(f"{what} must lie in [0, 1], not [{low:g}, {high:g}]")


def check_labels(y: Tensor, *, count: int, classes: int, what: str = "labels") -> None:
    """Refuse what is not one class index for each of `count` images.

    Raises:
        ShapeError: not (count,) or not int64.
        ValueError: an index outside 0 … classes - 1.
    """
    if tuple(y.shape) != (count,):
        raise ShapeError(f"{what} must be ({count},), not {tuple(y.shape)}")
    if y.dtype != torch.int64:
        raise ShapeError(f"{what} must be int64 class indices, not {y.dtype}")
    if count == 0:
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{what} must lie in 0 … {classes - 1}, not {low} … {high}")


def check_same_shape(a: Tensor, b: Tensor, *, what: str) -> None:
    """Refuse two tensors of different shapes.

    Raises:
        ShapeError: they differ; `what` names them.
    """
    if a.shape != b.shape:
        raise ShapeError(f"{what} differ in shape: {tuple(a.shape)} and {tuple(b.shape)}")
