"""What a network says of a set of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overproof.errors import NonFiniteLoss


def pixels_of(images: Tensor) -> Tensor:
    """uint8 images in 0 … 255 as float32 in [0, 1]; float32 ones as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


@torch.no_grad()
def predictions_of(
    model: nn.Module, images: Tensor, *, device: torch.device, rows_at_once: int
) -> Tensor:
    """Classes that `model` gives to `images`, in eval mode; its mode is put back.

    Args:
        model: pixels in [0, 1] → logits, on `device`.
        images: (N, C, H, W), uint8 or float32 pixels, any device.
        device: where to compute.
        rows_at_once: images in one forward pass; bounds memory.

    Returns:
        (N,) int64 on the CPU.

    Raises:
        NonFiniteLoss: a logit is NaN or infinite: the network diverged.
    """
    training = model.training
    model.eval()
    predictions, finite = [], []
    for batch in torch.split(images, rows_at_once):
        logits = model(pixels_of(batch.to(device)))
        predictions.append(logits.argmax(dim=1))
        finite.append(logits.isfinite().all())
    model.train(training)
    if not bool(torch.stack(finite).all()):
        raise NonFiniteLoss("the network's logits are not finite; lower the learning rate")
    return torch.cat(predictions).cpu()
