"""DSA against an independent implementation: one image, one pixel at a time, in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from overproof.ml.augment.dsa import FAMILIES, apply, draw
from overproof.ml.seeding import generator

Image = NDArray[np.float64]


def _color(x: Image, u: list[float]) -> Image:
    brighter = x + (u[0] - 0.5)
    grey = brighter.mean(axis=0)
    saturated = grey + (brighter - grey) * 2 * u[1]
    return np.asarray(saturated.mean() + (saturated - saturated.mean()) * (u[2] + 0.5))


def _crop(x: Image, u: list[float]) -> Image:
    _, height, width = x.shape
    reach = round(height / 8 + 1e-9)
    down = math.floor(u[0] * (2 * reach + 1)) - reach
    right = math.floor(u[1] * (2 * reach + 1)) - reach
    result = np.zeros_like(x)
    for i in range(height):
        for j in range(width):
            if 0 <= i + down < height and 0 <= j + right < width:
                result[:, i, j] = x[:, i + down, j + right]
    return result


def _cutout(x: Image, u: list[float]) -> Image:
    _, height, width = x.shape
    length = math.floor(height / 2 + 0.5)
    centres = height if length % 2 else height + 1
    middle_i, middle_j = math.floor(u[0] * centres), math.floor(u[1] * centres)
    result = x.copy()
    for a in range(length):
        for b in range(length):
            i = min(max(middle_i - length // 2 + a, 0), height - 1)
            j = min(max(middle_j - length // 2 + b, 0), width - 1)
            result[:, i, j] = 0
    return result


def _flip(x: Image, u: list[float]) -> Image:
    return x[:, :, ::-1].copy() if u[0] < 0.5 else x


def _scale(x: Image, u: list[float], align: bool) -> Image:
    across, down = (1 / 1.2 + number * (1.2 - 1 / 1.2) for number in u[:2])
    return _resample(x, np.array([[across, 0], [0, down]]), align)


def _rotate(x: Image, u: list[float], align: bool) -> Image:
    angle = math.radians((u[0] - 0.5) * 30)
    cos, sin = math.cos(angle), math.sin(angle)
    return _resample(x, np.array([[cos, -sin], [sin, cos]]), align)


def _resample(x: Image, matrix: Image, align: bool) -> Image:
    """Each output pixel read from where `matrix` sends it, bilinear, zero outside."""
    _, height, width = x.shape

    def to_unit(index: int, side: int) -> float:
        return 2 * index / (side - 1) - 1 if align else (2 * index + 1) / side - 1

    def to_index(position: float, side: int) -> float:
        return (position + 1) * (side - 1) / 2 if align else ((position + 1) * side - 1) / 2

    result = np.zeros_like(x)
    for i in range(height):
        for j in range(width):
            across, down = matrix @ np.array([to_unit(j, width), to_unit(i, height)])
            column, row = to_index(across, width), to_index(down, height)
            for a in (math.floor(row), math.floor(row) + 1):
                for b in (math.floor(column), math.floor(column) + 1):
                    if 0 <= a < height and 0 <= b < width:
                        weight = (1 - abs(row - a)) * (1 - abs(column - b))
                        result[:, i, j] += weight * x[:, a, b]
    return result


def _reference(family: str, x: Image, u: list[float], align: bool) -> Image:
    match family:
        case "color":
            return _color(x, u)
        case "crop":
            return _crop(x, u)
        case "cutout":
            return _cutout(x, u)
        case "flip":
            return _flip(x, u)
        case "scale":
            return _scale(x, u, align)
        case _:
            return _rotate(x, u, align)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("side", [7, 12, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_agrees_with_the_reference(family: str, side: int, align: bool) -> None:
    x = torch.randn((8, 3, side, side), generator=generator(side, "images")).double()
    drawn = draw((family,), generator(side, "step"), 8, siamese=False)

    result = apply(x, drawn, align_corners=align).numpy()

    for index in range(8):
        numbers = drawn.numbers[index].tolist()
        expected = _reference(family, x[index].numpy(), numbers, align)
        np.testing.assert_allclose(result[index], expected, atol=1e-6)


def test_mixed_families_for_classes_agree_with_the_reference() -> None:
    x = torch.randn((24, 3, 8, 8), generator=generator(0, "images")).double()
    drawn = draw(FAMILIES, generator(5, "step"), 8, siamese=True)

    result = apply(x, drawn).numpy()

    for index in range(24):
        label = index // 3
        family = FAMILIES[int(drawn.choice[label])]
        expected = _reference(family, x[index].numpy(), drawn.numbers[label].tolist(), False)
        np.testing.assert_allclose(result[index], expected, atol=1e-6)
