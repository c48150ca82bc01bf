"""Pictures of a set for people: a row of images for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from overproof.errors import ShapeError

_MOST_COLUMNS = 10
_MOST_PIXELS = 4_000_000  # of a picture: a few megabytes as PNG


@dataclass(frozen=True)
class Grid:
    """How much of a set a picture shows: the first images of the first classes.

    Attributes:
        rows: classes.
        columns: images of each.
    """

    rows: int
    columns: int

    @classmethod
    def of(cls, classes: int, images_per_class: int, size: tuple[int, int]) -> Grid:
        """As much of a set as fits a picture: all classes before many images of them."""
        cells = max(1, _MOST_PIXELS // (size[0] * size[1]))
        rows = min(classes, cells)
        return cls(rows, max(1, min(images_per_class, _MOST_COLUMNS, cells // rows)))


def write_picture(images: Tensor, grid: Grid, classes: int, path: Path) -> None:
    """Write `images` as a PNG, losslessly but for clamping to [0, 1] and rounding to a byte.

    Args:
        images: (K · n, C, H, W) pixels, class after class, any range and device; C is 1 or 3.
        grid: what of them is shown.
        classes: K.
        path: of the file.

    Raises:
        ShapeError: the images are not as many for each class.
    """
    if not len(images) or len(images) % classes:
        raise ShapeError(f"{len(images)} images are not as many for each of {classes} classes")
    channels, height, width = images.shape[1:]
    shown = images.detach().view(classes, -1, channels, height, width)
    shown = shown[: grid.rows, : grid.columns].cpu().nan_to_num(0).clamp(0, 1)
    pixels = (shown * 255).round().byte().permute(0, 3, 1, 4, 2)
    pixels = pixels.reshape(grid.rows * height, -1, channels)
    Image.fromarray((pixels[..., 0] if channels == 1 else pixels).numpy()).save(path, "PNG")
