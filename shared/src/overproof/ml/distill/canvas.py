"""Canvases: several small images in the place of one large one.

A canvas of factor m holds m × m tiles, row by row. Decoding enlarges each tile to the size of the
canvas, so n canvases of a class teach as n · m² images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from overproof.errors import ShapeError

_FILL = 0.5  # of what the last tiles lack where the factor does not divide the size

Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]


def decode(canvases: Tensor, factor: int) -> Tensor:
    """The images that canvases stand for.

    Args:
        canvases: (B, C, H, W) pixels.
        factor: m; 1 returns the canvases as they are.

    Returns:
        (B · m², C, H, W), the tiles of a canvas side by side, row by row, enlarged bilinearly.
        Differentiable.

    Raises:
        ShapeError: a tile would lie outside the canvas.
    """
    if factor == 1:
        return canvases
    B, C, H, W = canvases.shape
    h, w = _tile_size(H, W, factor)
    padded = functional.pad(canvases, (0, factor * w - W, 0, factor * h - H), value=_FILL)
    tiles = padded.view(B, C, factor, h, factor, w).permute(0, 2, 4, 1, 3, 5)
    return functional.interpolate(
        tiles.reshape(-1, C, h, w), size=(H, W), mode="bilinear", align_corners=False
    )


def encode(images: Tensor, factor: int, mode: Literal["nearest", "bilinear"]) -> Tensor:
    """Canvases of shrunken images; where the factor divides the size, `decode` finds each again.

    Args:
        images: (B · m², C, H, W) pixels, the images of a canvas side by side.
        factor: m.
        mode: how images are shrunk.

    Returns:
        (B, C, H, W).

    Raises:
        ShapeError: a tile would lie outside the canvas.
    """
    if factor == 1:
        return images
    _, C, H, W = images.shape
    h, w = _tile_size(H, W, factor)
    tiles = images.view(-1, factor, factor, C, H, W)
    canvases = images.new_empty(len(tiles), C, H, W)
    for row in range(factor):
        for column in range(factor):
            place = canvases[:, :, row * h : (row + 1) * h, column * w : (column + 1) * w]
            place.copy_(functional.interpolate(tiles[:, row, column], place.shape[2:], mode=mode))
    return canvases


def _tile_size(height: int, width: int, factor: int) -> tuple[int, int]:
    h, w = -(-height // factor), -(-width // factor)
    if (factor - 1) * h >= height or (factor - 1) * w >= width:
        raise ShapeError(
            f"a canvas of {height} × {width} pixels cannot hold {factor} × {factor} tiles; "
            "use a smaller factor"
        )
    return h, w


class CanvasDescent:
    """Canvases of all classes that descend class after class.

    The reference code takes a step of SGD with momentum after the loss of each class, on one
    tensor of all classes. A class's loss does not depend on the others' canvases, but each step
    also moves the others along their velocity. Between two visits of a class these moves add up to
    a closed form, so all gradients of a sweep can be computed together.

    Args:
        values: (K, n, C, H, W) float32; taken over and changed in place.

    Attributes:
        values: the canvases.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._velocity = torch.zeros_like(values)

    def step_in_turn(self, gradient: Gradient, *, learning_rate: float, momentum: float) -> Tensor:
        """One sweep: a step along each class's gradient, class 0 first.

        Args:
            gradient: canvases of all classes, each as it is when its turn comes → the gradient of
                each class's loss by its own canvases, and the loss summed over classes.
            learning_rate: of each step.
            momentum: of SGD, below 1.

        Returns:
            The loss.
        """
        classes = len(self.values)
        # Before its turn class c has seen c steps of others, after it classes - 1 - c more.
        before = torch.arange(classes, dtype=torch.float64)
        self._coast(before, learning_rate, momentum)
        slope, loss = gradient(self.values)
        self._velocity.mul_(momentum).add_(slope)
        self.values.add_(self._velocity, alpha=-learning_rate)
        self._coast(classes - 1 - before, learning_rate, momentum)
        return loss

    def clamp(self, low: float, high: float) -> None:
        """Bound all values, in place."""
        self.values.clamp_(low, high)

    def state(self) -> dict[str, Tensor]:
        """Canvases and velocity; copies."""
        return {"images": self.values.clone(), "velocity": self._velocity.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self.values.copy_(state["images"])
        self._velocity.copy_(state["velocity"])

    def _coast(self, steps: Tensor, learning_rate: float, momentum: float) -> None:
        """`steps` (K,) steps of SGD without a gradient: v ← μ v, x ← x - lr v, so many times."""
        left = momentum**steps
        way = momentum * (1 - left) / (1 - momentum)  # μ + μ² + … + μ^steps
        shape = (-1, *(1 for _ in self.values.shape[1:]))
        self.values.sub_(learning_rate * way.view(shape).to(self.values) * self._velocity)
        self._velocity.mul_(left.view(shape).to(self._velocity))
