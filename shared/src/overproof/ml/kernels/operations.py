"""Differentiable operations on top of the kernels: float32 on a CPU, channels last in memory."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from overproof.ml.kernels.library import library

LANES = 16  # channels come in multiples of it, see kernels.cpp
# Images that go through the products of one convolution at a time, so that those stay in the
# cache: a layer of 128 channels and 16 × 16 pixels took 0.5 ms an image by 16, 1.0 ms by 64.
_IMAGES = 16

# Winograd's F(4 × 4, 3 × 3) with the points 0, ±1, ±2 and infinity (arXiv:1509.09308, section
# 4.3); the transforms of images and products are in kernels.cpp.
_POINTS = torch.tensor(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    dtype=torch.float64,
)


def winograd_weights(weight: Tensor) -> Tensor:
    """(K, C, 3, 3) filters → (36, C, K), as `convolution` takes them."""
    points = torch.einsum("ai,kcij,bj->abck", _POINTS, weight.double(), _POINTS)
    return points.flatten(0, 1).to(weight.dtype).contiguous()


def backward_weights(weight: Tensor) -> Tensor:
    """As `winograd_weights`, of the convolution that takes gradients back to the input."""
    return winograd_weights(weight.flip(2, 3).transpose(0, 1))


def convolution(x: Tensor, weights: Tensor, weights_back: Tensor, bias: Tensor) -> Tensor:
    """3 × 3 convolution with stride 1 and padding 1, by a quarter of its multiplications.

    Rounding is about four times that of the direct sum: 2e-6 of the deviation of the result.

    Args:
        x: (B, C, H, W); C a multiple of `LANES`. The only argument with a gradient.
        weights: (36, C, K) of `winograd_weights`; K a multiple of `LANES`.
        weights_back: (36, K, C) of `backward_weights`.
        bias: (K,).

    Source: arXiv:1509.09308, section 4.
    """
    result: Tensor = _Convolution.apply(x, weights, weights_back, bias)
    return result


def norm_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Instance norm, ReLU and 2 × 2 average pooling in one go.

    Args:
        x: (B, C, H, W), even H and W; C a multiple of `LANES`. The only argument with a gradient.
        weight: (C,), scale after the norm.
        bias: (C,), offset after it.
        epsilon: added to the variance.
    """
    result: Tensor = _NormReluPool.apply(x, weight, bias, epsilon)
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, weights_back: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weights_back)
        return _convolved(x, weights, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (weights_back,) = ctx.saved_tensors
        nothing = weights_back.new_zeros(weights_back.shape[2])
        return _convolved(gradients[0], weights_back, nothing), None, None, None


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        x = _channels_last(x)
        images, channels, height, width = x.shape
        y = _empty(x, images, channels, height // 2, width // 2)
        mean, scale = x.new_empty(2, images, channels).unbind()
        library().norm_relu_pool(
            *_pointers(x, weight, bias),
            ctypes.c_float(epsilon),
            *_pointers(y, mean, scale),
            *_sizes(x),
        )
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        dx = torch.empty_like(x)
        gradient = _channels_last(gradients[0])
        library().norm_relu_pool_backward(
            *_pointers(gradient, x, weight, bias, mean, scale, dx), *_sizes(x)
        )
        return dx, None, None, None


def _convolved(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    x = _channels_last(x)
    _, channels, height, width = x.shape
    tiles, filters = -(-height // 4) * -(-width // 4), weights.shape[2]
    result = _empty(x, len(x), filters, height, width)
    for first in range(0, len(x), _IMAGES):
        part, out = x[first : first + _IMAGES], result[first : first + _IMAGES]
        points = x.new_empty(36, len(part) * tiles, channels)
        library().winograd_input(*_pointers(part, points), *_sizes(part))
        products = torch.bmm(points, weights)
        library().winograd_output(*_pointers(products, bias, out), *_sizes(out))
    return result


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, memory_format=torch.channels_last)


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _sizes(x: Tensor) -> list[ctypes.c_long]:
    images, channels, height, width = x.shape
    return [ctypes.c_long(size) for size in (images, height, width, channels)]
