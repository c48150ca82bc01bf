"""The threat ball: the nearest allowed image, and how far an image is from its origin."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.core.threat import Norm
from overproof.ml.shapes import check_same_shape


def project(x_adv: Tensor, x: Tensor, radius: Tensor, norm: Norm) -> Tensor:
    """A point inside the ball of `norm` around `x` and inside the pixel box; see `project_*`."""
    match norm:
        case Norm.LINF:
            return project_linf(x_adv, x, radius)
        case Norm.L2:
            return project_l2(x_adv, x, radius)


def distance(x_adv: Tensor, x: Tensor, norm: Norm) -> Tensor:
    """(B,) float32 distance in `norm` of each image from its origin."""
    match norm:
        case Norm.LINF:
            return linf_distance(x_adv, x)
        case Norm.L2:
            return l2_distance(x_adv, x)


def project_linf(x_adv: Tensor, x: Tensor, radius: Tensor) -> Tensor:
    """Nearest point to `x_adv` inside the L∞ ball around `x` and the pixel box.

    Args:
        x_adv: (B, C, H, W) float32, any finite values.
        x: (B, C, H, W) float32 in [0, 1].
        radius: (B,) float32 in pixel units of [0, 1], not negative.

    Returns:
        (B, C, H, W) in [0, 1]; |result - x| <= radius up to float32 rounding.

    Raises:
        ShapeError: `x_adv` and `x` differ in shape.
    """
    check_same_shape(x_adv, x, what="adversarial images and their origins")
    bound = radius.view(-1, 1, 1, 1)
    return (x + (x_adv - x).clamp(-bound, bound)).clamp(0.0, 1.0)


def project_l2(x_adv: Tensor, x: Tensor, radius: Tensor) -> Tensor:
    """`x_adv` drawn towards `x` into the L2 ball, then cut to the pixel box.

    Cutting moves every pixel towards `x`, which is in the box, so the result is inside both; it is
    not always the nearest point that is.

    Args:
        x_adv: (B, C, H, W) float32, any finite values.
        x: (B, C, H, W) float32 in [0, 1].
        radius: (B,) float32 in pixel units of [0, 1], not negative.

    Returns:
        (B, C, H, W) in [0, 1]; the norm of result - x is at most the radius up to float32 rounding.

    Raises:
        ShapeError: `x_adv` and `x` differ in shape.
    """
    check_same_shape(x_adv, x, what="adversarial images and their origins")
    delta = x_adv - x
    # Inside the ball the quotient is above 1; at `x` itself it is infinite, or NaN for radius 0.
    shrink = (radius / l2_norm(delta)).nan_to_num(nan=0.0).clamp(max=1.0)
    return (x + delta * shrink.view(-1, 1, 1, 1)).clamp(0.0, 1.0)


def linf_distance(x_adv: Tensor, x: Tensor) -> Tensor:
    """(B,) largest absolute difference of a pixel, for each image."""
    return (x_adv - x).abs().flatten(1).amax(dim=1)


def l2_distance(x_adv: Tensor, x: Tensor) -> Tensor:
    """(B,) root of the sum of squared differences over channels and pixels, for each image."""
    return l2_norm(x_adv - x)


def l2_norm(delta: Tensor) -> Tensor:
    """(B,) Euclidean norm of each image, summed in float64: its error is that of its rounding."""
    norm: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1, dtype=torch.float64)
    return norm.to(delta.dtype)
