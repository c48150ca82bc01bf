"""Views of images: a box of each, resized to the whole, mirrored or not, its tiles in some order.

A view is a record of whole numbers, drawn once and applied as often as wanted; applying it is a
pure, differentiable function. Images are in any space in which 0 is what lies beyond the border.

Source: torchvision.transforms.v2 (`RandomResizedCrop` with antialiasing, `RandomCrop`); for tiles
LINs-lab/RDED, validation/utils.py (`ShufflePatches`). Differs: generators of the caller instead of
the global one; all images of a batch at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from overproof.errors import ShapeError

_TRIES = 10  # boxes drawn until one fits into the image
_ASPECTS = (3 / 4, 4 / 3)  # width by height


@dataclass(frozen=True, kw_only=True)
class Views:
    """Views of B images, on the CPU.

    Attributes:
        boxes: (B, 4) int64 top, left, height, width in pixels; may reach over the border.
        mirrored: (B,) bool.
        tiles: (B, 2, f) int64, for f × f tiles the order of their columns and of their rows.
    """

    boxes: Tensor
    mirrored: Tensor
    tiles: Tensor

    def of(self, rows: Tensor) -> Self:
        """Those of some images, by their (b,) int64 numbers."""
        return type(self)(
            boxes=self.boxes[rows], mirrored=self.mirrored[rows], tiles=self.tiles[rows]
        )


def whole_boxes(count: int, size: tuple[int, int]) -> Tensor:
    """(count, 4) boxes around all of an image of (H, W) pixels."""
    return torch.tensor([0, 0, *size]).repeat(count, 1)


def crop_boxes(
    count: int,
    size: tuple[int, int],
    smallest: float,
    generator: torch.Generator,
    *,
    aspects: tuple[float, float] = _ASPECTS,
) -> Tensor:
    """Boxes of a random share of the area and a random aspect, anywhere in the image.

    Args:
        count: how many.
        size: (H, W) of the images.
        smallest: share of the area, in (0, 1]; the largest is 1.
        generator: on the CPU; advanced by an amount that depends on `count` alone.
        aspects: smallest and largest width by height.

    Returns:
        (count, 4) int64. Where none of ten draws fits, the largest box of an allowed aspect in the
        middle.
    """
    H, W = size
    u = torch.rand(count, _TRIES, 2, generator=generator, dtype=torch.float64)
    area = H * W * (smallest + (1 - smallest) * u[..., 0])
    low, high = (math.log(bound) for bound in aspects)
    aspect = (low + (high - low) * u[..., 1]).exp()
    width = (area * aspect).sqrt().round().long()
    height = (area / aspect).sqrt().round().long()
    fits = (width > 0) & (width <= W) & (height > 0) & (height <= H)
    first = fits.long().argmax(dim=1, keepdim=True)
    has_one = fits.any(dim=1)
    height = height.gather(1, first).squeeze(1)
    width = width.gather(1, first).squeeze(1)

    share = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    top = (share[:, 0] * (H - height + 1)).long()
    left = (share[:, 1] * (W - width + 1)).long()
    drawn = torch.stack([top, left, height, width], dim=1)
    return torch.where(has_one[:, None], drawn, _middle_box(size, aspects))


def shift_boxes(
    count: int, size: tuple[int, int], reach: int, generator: torch.Generator
) -> Tensor:
    """(count, 4) boxes of the size of the image, moved by up to `reach` pixels along each axis."""
    moved = torch.randint(-reach, reach + 1, (count, 2), generator=generator)
    return torch.cat([moved, torch.tensor(size).repeat(count, 1)], dim=1)


def tile_orders(count: int, factor: int, generator: torch.Generator) -> Tensor:
    """(count, 2, factor) random orders of columns and rows of tiles."""
    return torch.rand(count, 2, factor, generator=generator).argsort(dim=2)


def resized(x: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """What is in a box of each image, at another size.

    Bilinear, with antialiasing where it shrinks; pixels outside the box have no influence.

    Args:
        x: (B, C, H, W) floating point.
        boxes: (B, 4) int64; see `Views`. Beyond the border there are zeros, as long as the box has
            the size `size`.
        size: (h, w) of the result.

    Returns:
        (B, C, h, w), differentiable with respect to `x`.
    """
    if len(boxes) != len(x):
        raise ShapeError(f"{len(boxes)} boxes and {len(x)} images do not fit")
    boxes = boxes.to(x.device)
    rows = _weights(boxes[:, 0], boxes[:, 2], x.shape[2], size[0], x.dtype)
    columns = _weights(boxes[:, 1], boxes[:, 3], x.shape[3], size[1], x.dtype)
    return rows.unsqueeze(1) @ x @ columns.transpose(1, 2).unsqueeze(1)


def apply(x: Tensor, views: Views) -> Tensor:
    """`x` as `views` see it.

    Args:
        x: (B, C, H, W) floating point.
        views: of B images.

    Returns:
        (B, C, H, W), differentiable with respect to `x`.
    """
    _, _, H, W = x.shape
    x = resized(x, views.boxes, (H, W))
    x = torch.where(views.mirrored.to(x.device).view(-1, 1, 1, 1), x.flip(3), x)
    if views.tiles.shape[2] == 1:
        return x
    columns, rows = views.tiles.unbind(1)
    x = x.gather(2, _places(rows, H).to(x.device)[:, None, :, None].expand_as(x))
    return x.gather(3, _places(columns, W).to(x.device)[:, None, None, :].expand_as(x))


def _middle_box(size: tuple[int, int], aspects: tuple[float, float]) -> Tensor:
    H, W = size
    height = min(H, round(W / aspects[0]))
    width = min(W, round(H * aspects[1]))
    return torch.tensor([(H - height) // 2, (W - width) // 2, height, width])


def _weights(start: Tensor, length: Tensor, side: int, out: int, dtype: torch.dtype) -> Tensor:
    """(B, out, side): how much of each pixel along one axis is in each pixel of the result."""
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    scale = length.to(dtype) / out
    centre = (torch.arange(out, device=start.device).view(1, -1, 1) + 0.5) * scale
    position = torch.arange(side, device=start.device).view(1, 1, -1) - start
    weight = 1 - (position + 0.5 - centre).abs() / scale.clamp(min=1)
    weight = weight.clamp(min=0) * ((position >= 0) & (position < length))
    return weight / weight.sum(dim=2, keepdim=True).clamp(min=torch.finfo(dtype).tiny)


def _places(order: Tensor, side: int) -> Tensor:
    """(B, side): where the pixels along one axis come from when tiles are put in `order`."""
    factor = order.shape[1]
    tile = (torch.arange(side) // (side // factor)).clamp(max=factor - 1)
    rank = order.argsort(dim=1)
    return (rank[:, tile] * side + torch.arange(side)).argsort(dim=1)
