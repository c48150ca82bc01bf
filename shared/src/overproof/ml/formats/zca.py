"""ZCA whitening, in which trajectory matching stores its sets, undone with the same transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.formats import torch_files

EPSILON = 0.1  # of the published code, inside the root
_MEANS = ("mean", "mean_vector")
_INVERSES = ("inverse", "transform_inv")
_TRANSFORMS = ("transform", "transform_matrix")


@dataclass(frozen=True)
class Whitening:
    """z = (x − μ) T on flattened pixels; undone as x = z T⁻¹ + μ.

    Attributes:
        mean: (D,) float64.
        inverse: (D, D) float64, T⁻¹.

    Source: GeorgeCazenavette/mtt-distillation, utils.py with kornia's `ZCAWhitening(eps=0.1)`.
    """

    mean: Tensor
    inverse: Tensor

    def undo(self, images: Tensor, what: str) -> Tensor:
        """(N, C, H, W) whitened images as float32 pixels.

        Raises:
            InvalidData: the transform is of another size.
        """
        flat = images.flatten(1).double()
        if flat.shape[1] != len(self.mean):
            raise InvalidData(
                f"the ZCA transform is of {len(self.mean)} values, {what} has images of "
                f"{flat.shape[1]}"
            )
        return (flat @ self.inverse + self.mean).float().view(images.shape)


def fit(images: Tensor, epsilon: float = EPSILON) -> Whitening:
    """The whitening of (N, C, H, W) training pixels in [0, 1].

    T = U (S + ε)^(−1/2) Uᵀ with the eigenvalues S of the covariance (n − 1 in the denominator),
    computed in float64.
    """
    flat = images.flatten(1).double()
    mean = flat.mean(dim=0)
    centred = flat - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / (len(flat) - 1))
    inverse = (vectors * (values.clamp(min=0) + epsilon).sqrt()) @ vectors.T
    return Whitening(mean, inverse)


def read(path: Path) -> Whitening:
    """The whitening in a file: safetensors, or of torch, by the names that kornia or we use.

    `mean` or `mean_vector` (D,), and `inverse` or `transform_inv` (D, D), or `transform` or
    `transform_matrix` to be inverted.

    Raises:
        InvalidData: the file holds none.
    """
    tensors = _tensors(path)
    mean = _first(tensors, _MEANS)
    inverse = _first(tensors, _INVERSES)
    if inverse is None and (transform := _first(tensors, _TRANSFORMS)) is not None:
        try:
            inverse = torch.linalg.inv(transform)
        except RuntimeError:
            raise InvalidData(f"the transform in {path} has no inverse") from None
    if mean is None or inverse is None or inverse.shape != (mean.numel(), mean.numel()):
        raise InvalidData(
            f"{path} holds no ZCA transform; it needs `mean` (D,) and `inverse` or `transform` "
            "(D, D)"
        )
    if not bool(inverse.isfinite().all() and mean.isfinite().all()):
        raise InvalidData(f"the transform in {path} is not finite")
    return Whitening(mean.flatten(), inverse)


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
    return found[0].double() if found else None
