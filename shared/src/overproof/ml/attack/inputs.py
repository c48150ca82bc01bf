"""What people hand to an attack, made into what attacks work on, or refused with one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from overproof.errors import ShapeError
from overproof.ml.shapes import check_images, check_unit_range


def pixels(x: Tensor) -> Tensor:
    """Images as attacks work on them.

    Args:
        x: (B, C, H, W), any floating point dtype, in [0, 1].

    Returns:
        (B, C, H, W) float32: adversarial images keep full precision whatever the network's dtype.

    Raises:
        ShapeError: not four dimensions, or integers (which are 0 to 255).
        ValueError: values outside [0, 1], such as 0 to 255 or normalised ones.
    """
    check_images(x)
    check_unit_range(x)
    return x.float()


def class_indices(y: Tensor, count: int) -> Tensor:
    """Labels as class indices.

    Args:
        y: (count,) class indices of any integer dtype, or (count, K) one-hot rows of any dtype.
        count: number of images.

    Returns:
        (count,) int64. Whether they are classes of the network shows its first output.

    Raises:
        ShapeError: neither of the two, e.g. soft labels.
    """
    if tuple(y.shape) == (count,) and not (y.is_floating_point() or y.dtype is torch.bool):
        return y.long()
    if y.ndim == 2 and len(y) == count:
        if bool(((y == 0) | (y == 1)).all()) and bool((y.sum(dim=1) == 1).all()):
            return y.long().argmax(dim=1)
        raise ShapeError("labels of two dimensions must be one-hot rows; take the argmax of others")
    raise ShapeError(f"labels must be ({count},) class indices, not {tuple(y.shape)} {y.dtype}")


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """(B, K) float32 logits of `model` at the pixels `x`, with history where `x` asks for it.

    A network in half precision gets images of its own dtype, since it is that network that is
    judged. Of a tuple or list the first entry is taken, of a mapping or object its `logits`.

    Raises:
        ShapeError: the output holds no logits for each image.
    """
    weights = next((each for each in model.parameters() if each.is_floating_point()), None)
    output = model(x if weights is None else x.to(weights.dtype))
    logits = _unwrapped(output)
    if not (isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(x)):
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise ShapeError(f"the network must return logits ({len(x)}, K), not {shown}")
    return logits.float()


def _unwrapped(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits")
    if hasattr(output, "logits"):  # before tuples: a named tuple may have both
        return output.logits
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output
