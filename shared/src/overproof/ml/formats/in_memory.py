"""Sets that a script holds in memory, written as a file that is imported like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from overproof.errors import InvalidData


def write_arrays(images: Any, labels: Any, classes: int, path: Path) -> None:
    """Write images and labels to `path` as safetensors.

    Args:
        images: (N, C, H, W), a tensor or whatever becomes one; copied as float32.
        labels: (N,) or (N, 1) classes, or (N, K) soft labels; None for as many images of each
            class, class after class.
        classes: K.
        path: the file to write; replaced if it exists.

    Raises:
        InvalidData: shapes and numbers that do not fit together.
    """
    pixels = torch.as_tensor(images).detach().cpu().float().contiguous()
    if pixels.ndim != 4 or not len(pixels):
        raise InvalidData(f"images must be (N, C, H, W), not {tuple(pixels.shape)}")
    if labels is None:
        if len(pixels) % classes:
            raise InvalidData(
                f"{len(pixels)} images are not as many of each of {classes} classes; give labels"
            )
        known = torch.arange(classes).repeat_interleave(len(pixels) // classes)
    else:
        known = torch.as_tensor(labels).detach().cpu()
    if known.ndim not in (1, 2) or len(known) != len(pixels):
        raise InvalidData(f"{len(pixels)} images and labels {tuple(known.shape)} do not fit")
    if known.ndim == 2 and known.shape[1] != 1:
        soft = known.float().contiguous()
        tensors = {"images": pixels, "labels": soft.argmax(dim=1), "logits": soft}
    else:
        tensors = {"images": pixels, "labels": known.flatten().long()}
    save_file(tensors, path)
