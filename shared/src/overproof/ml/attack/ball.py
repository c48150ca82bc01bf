"""The threat ball: the nearest allowed image, and how far an image is from its origin."""

from __future__ import annotations

from torch import Tensor

from overproof.ml.shapes import check_same_shape


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


def linf_distance(x_adv: Tensor, x: Tensor) -> Tensor:
    """(B,) largest absolute difference of a pixel, for each image."""
    return (x_adv - x).abs().flatten(1).amax(dim=1)
