"""ZCA whitening, in which trajectory matching stores its sets, undone with the same transform.

Source: GeorgeCazenavette/mtt-distillation, utils.py with kornia's `ZCAWhitening(eps=0.1)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.formats import torch_files
from overproof.ml.formats.content import as_tensor
from overproof.ml.shapes import ImageFacts

_MEANS = ("mean", "mean_vector")
_INVERSES = ("inverse", "transform_inv")
_TRANSFORMS = ("matrix", "transform", "transform_matrix")


def undo(whitening: Whitening, images: Tensor) -> Tensor:
    """(N, C, H, W) whitened images as float32 pixels; the inverse is computed in float64."""
    inverse = torch.linalg.inv(whitening.matrix.double())
    pixels = images.flatten(1).double() @ inverse + whitening.mean.flatten().double()
    flat: Tensor = pixels.float()
    return flat.view(images.shape)


def read(path: Path, facts: ImageFacts) -> Whitening:
    """The whitening in a file: safetensors, or of torch, by the names that kornia or we use.

    `mean` or `mean_vector` (D,), and `matrix`, `transform` or `transform_matrix` (D, D), or
    `transform_inv` or `inverse` to be inverted.

    Raises:
        InvalidData: the file holds none, one that has no inverse, or one of other images.
    """
    tensors = _tensors(path)
    mean = _first(tensors, _MEANS)
    matrix = _first(tensors, _TRANSFORMS)
    inverse = _first(tensors, _INVERSES)
    if mean is None or (matrix is None and inverse is None):
        raise InvalidData(
            f"{path} holds no ZCA transform; it needs `mean` (D,) and `transform` or "
            "`transform_inv` (D, D)"
        )
    shape = (facts.channels, *facts.size)
    numbers = math.prod(shape)
    for each in (matrix, inverse):
        if mean.numel() != numbers or (each is not None and each.shape != (numbers, numbers)):
            raise InvalidData(f"{path} holds a ZCA transform of others than {shape} images")
    try:
        found = torch.linalg.inv(inverse) if matrix is None else matrix
        torch.linalg.inv(found.float().double())  # as `undo` does
    except RuntimeError:
        raise InvalidData(f"the ZCA transform in {path} has no inverse") from None
    whitening = Whitening(mean.view(shape).float(), found.float())
    whitening.check(facts, str(path))
    return whitening


def _tensors(path: Path) -> Mapping[str, Any]:
    head = torch_files.read_head(path, what="transform")
    if head[8:9] != b"{":
        value = torch_files.load(path, what="transform")
        return value if isinstance(value, Mapping) else {}
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidData(f"transform {path} is no safetensors file: {error}") from None
    return tensors


def _first(tensors: Mapping[str, Any], names: tuple[str, ...]) -> Tensor | None:
    found = [tensors[name] for name in names if isinstance(tensors.get(name), Tensor)]
    return as_tensor(found[0], f"ZCA transform, {names[0]}").double() if found else None
