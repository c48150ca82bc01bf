"""Differentiable Siamese Augmentation (DSA).

A draw decides once which transformation each group of images gets and with which numbers; applying
it is a pure, differentiable function. The same draw on two batches is what "siamese" means.

Images are float32 in normalised units, so that the zeros which crop, cutout, scale and rotation
bring in are the mean colour.

Source: arXiv:2102.08259, section 3.3; VICO-UoE/DatasetCondensation, utils.py (`DiffAugment`).
Differs: a generator of the caller instead of the global one, reseeded from the wall clock there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from overproof.errors import ShapeError

FAMILIES = ("color", "crop", "cutout", "flip", "scale", "rotate")

# Strengths of the reference code.
_BRIGHTNESS = 1.0
_SATURATION = 2.0
_CONTRAST = 0.5
_CROP_FRACTION = 0.125
_CUTOUT_FRACTION = 0.5
_FLIP_PROBABILITY = 0.5
_SCALE_RATIO = 1.2
_ROTATION_DEGREES = 15.0


def strategy_of(name: str, *, mirrors: bool) -> tuple[str, ...]:
    """The families that the strategy called `name` draws from.

    Args:
        name: `none`; `auto` for all six, without flip where a mirrored image is of another class;
            or families joined by underscores (`color_crop_cutout`).
        mirrors: whether a mirrored image keeps its class.

    Raises:
        ValueError: a family that does not exist.
    """
    if name == "none":
        return ()
    if name == "auto":
        return tuple(family for family in FAMILIES if mirrors or family != "flip")
    families = tuple(name.split("_"))
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise ValueError(f"no augmentation is called {unknown[0]!r}; known: {', '.join(FAMILIES)}")
    return families


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What was drawn for G groups of images, on the CPU.

    Attributes:
        families: what could be drawn; empty when nothing is augmented.
        choice: (G,) int64, index into `families`.
        numbers: (G, 3) float32, uniform in [0, 1); each family says what it makes of them.
    """

    families: tuple[str, ...]
    choice: Tensor
    numbers: Tensor


def draw(
    families: tuple[str, ...], generator: torch.Generator, groups: int, *, siamese: bool
) -> Draw:
    """Decide how `groups` groups of images are augmented.

    Args:
        families: see `strategy_of`.
        generator: on the CPU; advanced by an amount that depends on `groups` alone.
        groups: for training, the number of images; for matching, the number of classes.
        siamese: True draws a family for each group, as matching does for each class; False draws
            one family for the whole batch, as the training of networks does.
    """
    choice = torch.randint(max(len(families), 1), (groups if siamese else 1,), generator=generator)
    numbers = torch.rand((groups, 3), generator=generator)
    return Draw(families=families, choice=choice.expand(groups), numbers=numbers)


def apply(x: Tensor, drawn: Draw, *, align_corners: bool = False) -> Tensor:
    """`x` as `drawn` decided.

    Args:
        x: (B, C, H, W) floating point. B is a multiple of G; images of one group are neighbours,
            so B = K · n images in order of their class fit a draw for K classes.
        drawn: what was drawn for G groups.
        align_corners: of the grids of scale and rotation; False in DC, DSA and DM, True in
            trajectory matching.

    Returns:
        (B, C, H, W), differentiable with respect to `x`; `x` itself if there are no families.

    Raises:
        ShapeError: B is no multiple of G.
    """
    groups = len(drawn.numbers)
    if x.ndim != 4 or groups == 0 or len(x) % groups:
        raise ShapeError(f"{tuple(x.shape)} images cannot be split into {groups} groups")
    if not drawn.families:
        return x
    each = len(x) // groups
    choice = drawn.choice.repeat_interleave(each)
    numbers = drawn.numbers.repeat_interleave(each, dim=0).to(x)
    used = sorted(set(drawn.choice.tolist()))
    if len(used) == 1:
        return _apply_family(drawn.families[used[0]], x, numbers, align_corners)
    parts, order = [], []
    for index in used:
        members = torch.nonzero(choice == index).squeeze(1)
        on_device = members.to(x.device)
        family = drawn.families[index]
        parts.append(_apply_family(family, x[on_device], numbers[on_device], align_corners))
        order.append(members)
    return torch.cat(parts)[torch.cat(order).argsort().to(x.device)]


def _apply_family(family: str, x: Tensor, numbers: Tensor, align_corners: bool) -> Tensor:
    if family == "scale":
        return _scale(x, numbers, align_corners)
    if family == "rotate":
        return _rotate(x, numbers, align_corners)
    return _PLAIN[family](x, numbers)


# ---- families: (B, C, H, W) images and (B, 3) uniform numbers → (B, C, H, W) --------------------


def _color(x: Tensor, numbers: Tensor) -> Tensor:
    """Brightness, then saturation, then contrast."""
    u, v, w = numbers.view(-1, 3, 1, 1, 1).unbind(1)
    x = x + (u - 0.5) * _BRIGHTNESS
    grey = x.mean(dim=1, keepdim=True)
    x = (x - grey) * (v * _SATURATION) + grey
    level = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - level) * (w + _CONTRAST) + level


def _crop(x: Tensor, numbers: Tensor) -> Tensor:
    """Shift by up to an eighth of the side; zeros come in."""
    B, C, H, W = x.shape
    reach_y, reach_x = (int(side * _CROP_FRACTION + 0.5) for side in (H, W))
    padded = functional.pad(x, (reach_x, reach_x, reach_y, reach_y))
    top = _integers(numbers[:, 0], 2 * reach_y + 1)
    left = _integers(numbers[:, 1], 2 * reach_x + 1)
    rows = (top[:, None] + torch.arange(H, device=x.device)).view(B, 1, H, 1)
    columns = (left[:, None] + torch.arange(W, device=x.device)).view(B, 1, 1, W)
    padded = padded.gather(2, rows.expand(B, C, H, padded.shape[3]))
    return padded.gather(3, columns.expand(B, C, H, W))


def _cutout(x: Tensor, numbers: Tensor) -> Tensor:
    """Zero a box of half the side, its centre anywhere, clipped at the border."""
    H, W = x.shape[2:]
    outside_y = _outside_box(numbers[:, 0], H)
    outside_x = _outside_box(numbers[:, 1], W)
    return x * (outside_y[:, None, :, None] | outside_x[:, None, None, :])


def _outside_box(u: Tensor, side: int) -> Tensor:
    """(B, side) bool, False inside the box along one axis."""
    length = int(side * _CUTOUT_FRACTION + 0.5)
    first = _integers(u, side + 1 - length % 2)[:, None] - length // 2
    position = torch.arange(side, device=u.device)
    return (position < first) | (position >= first + length)


def _flip(x: Tensor, numbers: Tensor) -> Tensor:
    """Mirror left and right, or not."""
    mirrored = (numbers[:, 0] < _FLIP_PROBABILITY).view(-1, 1, 1, 1)
    return torch.where(mirrored, x.flip(3), x)


def _scale(x: Tensor, numbers: Tensor, align_corners: bool) -> Tensor:
    """Stretch both axes independently; a factor below one enlarges."""
    low = 1 / _SCALE_RATIO
    factors = numbers[:, :2] * (_SCALE_RATIO - low) + low
    theta = torch.zeros(len(x), 2, 3, dtype=x.dtype, device=x.device)
    theta[:, 0, 0], theta[:, 1, 1] = factors.unbind(1)
    return _resample(x, theta, align_corners)


def _rotate(x: Tensor, numbers: Tensor, align_corners: bool) -> Tensor:
    """Turn around the centre."""
    angle = (2 * numbers[:, 0] - 1) * math.radians(_ROTATION_DEGREES)
    theta = torch.zeros(len(x), 2, 3, dtype=x.dtype, device=x.device)
    theta[:, 0, 0] = theta[:, 1, 1] = angle.cos()
    theta[:, 0, 1], theta[:, 1, 0] = -angle.sin(), angle.sin()
    return _resample(x, theta, align_corners)


def _resample(x: Tensor, theta: Tensor, align_corners: bool) -> Tensor:
    grid = functional.affine_grid(theta, list(x.shape), align_corners=align_corners)
    return functional.grid_sample(x, grid, padding_mode="zeros", align_corners=align_corners)


def _integers(u: Tensor, count: int) -> Tensor:
    """Uniform in [0, 1) → uniform integers 0 … count - 1."""
    # u · count can round up to count
    return (u * count).long().clamp(max=count - 1)


_PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "color": _color,
    "crop": _crop,
    "cutout": _cutout,
    "flip": _flip,
}
