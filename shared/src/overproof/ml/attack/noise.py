"""Noise that belongs to a sample: a hash of seed, sample and position instead of a generator.

An attack draws its random starts here, so that its result for one image depends neither on the
batch the image is in, nor on the order of images, nor on the device.
"""

from __future__ import annotations

import hashlib
from math import pi, prod

import torch
from torch import Tensor

from overproof.core.canonical import canonical_json
from overproof.core.threat import Norm

# Constants of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014), as signed 64-bit numbers: torch's int64 multiplication wraps in the same way.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_BITS = 24  # as many as a float32 in [0, 1) holds exactly


def uniform_noise(ids: Tensor, shape: tuple[int, ...], seed: int, *labels: str | int) -> Tensor:
    """Uniform numbers in [0, 1), an own stream for each sample.

    Args:
        ids: (B,) int64, the samples' numbers in their data set; repeated ids repeat the noise.
        shape: shape of one sample's noise.
        seed: of the cell.
        *labels: purpose, then counters such as the restart.

    Returns:
        (B, *shape) float32 on the device of `ids`, multiples of 2⁻²⁴; equal on every device.
    """
    digest = hashlib.sha256(canonical_json([seed, *labels])).digest()
    key = int.from_bytes(digest[:8], "big", signed=True)
    # Two rounds: the first spreads the ids over all 64 bits, so that streams do not overlap.
    streams = _mix(_mix(ids * _GAMMA + key)).view(-1, 1)
    positions = torch.arange(1, prod(shape) + 1, device=ids.device)
    bits = _shift_right(_mix(streams + positions * _GAMMA), 64 - _BITS)
    return (bits.to(torch.float32) * 2.0**-_BITS).view(-1, *shape)


def normal_noise(ids: Tensor, shape: tuple[int, ...], seed: int, *labels: str | int) -> Tensor:
    """Standard normal numbers, an own stream for each sample; arguments as in `uniform_noise`.

    Returns:
        (B, *shape) float32 on the device of `ids`; devices differ by the rounding of logarithm and
        cosine. None is larger than 5.8, since the uniform numbers behind them end at 2⁻²⁴.
    """
    # Box and Muller: a radius and an angle; 1 - u is never 0, so the logarithm is finite.
    radius, angle = uniform_noise(ids, (2, *shape), seed, *labels).unbind(1)
    return (-2.0 * (1.0 - radius).log()).sqrt() * (2.0 * pi * angle).cos()


def ball_direction(
    ids: Tensor, shape: tuple[int, ...], norm: Norm, seed: int, *labels: str | int
) -> Tensor:
    """Random points of the surface of the unit ball, an own stream for each sample.

    Returns:
        (B, *shape) float32 of length 1: uniform directions in L2, in L∞ uniform in the cube and
        then stretched to its surface.
    """
    if norm is Norm.L2:
        noise = normal_noise(ids, shape, seed, *labels)
        length: Tensor = noise.flatten(1).norm(dim=1)
    else:
        noise = 2.0 * uniform_noise(ids, shape, seed, *labels) - 1.0
        length = noise.flatten(1).abs().amax(dim=1)
    return noise / length.view(-1, *[1] * len(shape))


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically; the sign bits it brings in are masked off.
    return (z >> bits) & ((1 << (64 - bits)) - 1)
