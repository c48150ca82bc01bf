"""Arrays `images` and `labels` in an .npz archive or a safetensors file; sets of our own too.

Images are (N, C, H, W) or (N, H, W, C); of bytes, then 255 is 1, or floats. KIP writes such
archives, normalised image by image, which nobody can undo: they are refused.

Source for KIP: google/neural-tangents, kip_*.npz.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.formats import torch_files
from overproof.ml.formats.content import (
    Content,
    Form,
    Source,
    Space,
    Target,
    Wishes,
    as_images,
    as_tensor,
    number_of,
)

_WHITENING = ("zca_mean", "zca_matrix")
_OWN = {"images", "labels", "logits", "learning_rate", "canvas_factor", *_WHITENING}


def _is_npz(source: Source) -> bool:
    return not source.is_folder and source.path.suffix == ".npz"


def _is_safetensors(source: Source) -> bool:
    return not source.is_folder and source.path.suffix == ".safetensors"


def _read_npz(source: Source, target: Target, wishes: Wishes) -> Content:
    path = source.path
    arrays = load_npz(path)
    if path.name.startswith("kip"):
        raise InvalidData(
            f"{path} is a set of KIP, whose images are centred and scaled one by one and then "
            "whitened; they cannot be brought back to pixels"
        )
    return _content(arrays, path, target)


def _read_safetensors(source: Source, target: Target, wishes: Wishes) -> Content:
    path = source.path
    torch_files.read_head(path)
    try:
        arrays: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidData(f"{path} is no safetensors file: {error}") from None
    content = _content(arrays, path, target)
    if not arrays.keys() <= _OWN:
        return content
    rate = arrays.get("learning_rate")
    factor = arrays.get("canvas_factor")
    whitening = [arrays[name] for name in _WHITENING if name in arrays]
    return Content(
        images=content.images,
        labels=arrays.get("logits", arrays["labels"]),
        spaces=content.spaces,
        canvas=1 if factor is None else int(number_of(factor, f"{path}, canvas factor")),
        learning_rate=None if rate is None else number_of(rate, f"{path}, learning rate"),
        whitening=Whitening(*whitening) if len(whitening) == 2 else None,
    )


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an archive.

    Raises:
        InvalidData: it is none, holds Python objects (they are never unpickled), or is too large.
    """
    torch_files.read_head(path)
    torch_files.unpacked_size(path, what="archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged header raises whatever Python's parser makes of it
        reason = " ".join(str(error).split())[:120]
        raise InvalidData(f"{path} is no archive of plain arrays: {reason}") from None


def _content(arrays: dict[str, Any], path: Path, target: Target) -> Content:
    missing = {"images", "labels"} - arrays.keys()
    if missing:
        raise InvalidData(f"{path} lacks {' and '.join(sorted(missing))}")
    raw = as_tensor(arrays["images"], str(path))
    spaces: tuple[Space, ...] = ("unit", "normalised", "zca")
    images = raw.float()
    if raw.dtype == torch.uint8:
        images, spaces = images / 255, ("unit",)
    return Content(
        images=as_images(_channels_first(images, target, path), str(path)),
        labels=arrays["labels"],
        spaces=spaces,
    )


def _channels_first(images: torch.Tensor, target: Target, path: Path) -> torch.Tensor:
    """By the shape that the data set's images have."""
    height, width = target.facts.size
    channels = target.facts.channels
    if channels == 1 and images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and tuple(images.shape[1:]) == (height, width, channels):
        return images.permute(0, 3, 1, 2)
    if images.ndim != 4:
        raise InvalidData(f"{path} has images {tuple(images.shape)}; four axes are needed")
    return images


NPZ = Form(
    name="npz",
    summary="NumPy archive with images and labels",
    recognises=_is_npz,
    read=_read_npz,
)
SAFETENSORS = Form(
    name="safetensors",
    summary="safetensors with images and labels; what `overproof export` writes",
    recognises=_is_safetensors,
    read=_read_safetensors,
)
