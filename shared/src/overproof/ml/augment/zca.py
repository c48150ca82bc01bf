"""ZCA whitening: images whose pixels are no longer correlated, turned back as little as possible.

Fitted on training images and applied to all that a network sees, so it is part of the network: an
attack works on pixels and differentiates through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from overproof.errors import InvalidData, ShapeError
from overproof.ml.shapes import ImageFacts

_DAMPING = 0.1  # added to the variances, so that noise is not blown up
_VALUES_AT_ONCE = 2**26  # float64 values of images held at once: half a gigabyte


@dataclass(frozen=True)
class Whitening:
    """A fitted whitening, z = (x - mean) · matrix.

    Attributes:
        mean: (C, H, W) float32, the mean image, of pixels in [0, 1].
        matrix: (D, D) float32, symmetric, D = C · H · W.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def fit(cls, images: Tensor, device: torch.device) -> Self:
        """The whitening of a set of images; computed in float64.

        With the covariance Σ = U diag(S) Uᵀ of pixels it is U diag((S + 0.1)^-½) Uᵀ. Takes of the
        order of N · D² + 10 · D³ multiplications, and 8 · D² bytes some times over.

        Args:
            images: (N, C, H, W), uint8 or float32 pixels, N at least 2.
            device: where to compute.

        Returns:
            Mean and matrix on the CPU.

        Raises:
            ShapeError: there are fewer than two images.

        Source: arXiv:2203.11932, appendix; kornia, enhance/zca.py (`zca_mean`, eps 0.1). Differs:
        an eigendecomposition, which for a covariance is the same; float64.
        """
        if len(images) < 2:
            raise ShapeError(f"{len(images)} images have no covariance to whiten; take two or more")
        D = images[0].numel()
        parts = torch.split(images.flatten(1), max(1, _VALUES_AT_ONCE // D))
        unit = 255.0 if images.dtype == torch.uint8 else 1.0
        total = torch.zeros(D, dtype=torch.float64, device=device)
        for part in parts:
            total += (part.to(device).double() / unit).sum(dim=0)
        mean = total / len(images)
        covariance = torch.zeros(D, D, dtype=torch.float64, device=device)
        for part in parts:
            centred = part.to(device).double() / unit - mean
            covariance += centred.T @ centred
        variances, axes = torch.linalg.eigh(covariance / (len(images) - 1))
        scale = (variances.clamp(min=0) + _DAMPING).rsqrt()
        matrix = (axes * scale) @ axes.T
        return cls(mean.view(images.shape[1:]).float().cpu(), matrix.float().cpu())

    def check(self, facts: ImageFacts, what: str) -> None:
        """Refuse one that does not fit images like `facts`.

        Args:
            facts: the images.
            what: what the message calls it.

        Raises:
            ShapeError, InvalidData: other sizes, or values that are not finite.
        """
        shape = (facts.channels, *facts.size)
        D = facts.channels * facts.size[0] * facts.size[1]
        if tuple(self.mean.shape) != shape or tuple(self.matrix.shape) != (D, D):
            raise ShapeError(
                f"{what}: whitening of {shape} images is {shape} and {(D, D)}, not "
                f"{tuple(self.mean.shape)} and {tuple(self.matrix.shape)}"
            )
        if not bool(self.mean.isfinite().all() and self.matrix.isfinite().all()):
            raise InvalidData(f"{what}: whitening is not finite")
