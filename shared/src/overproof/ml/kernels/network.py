"""The same network out of faster layers, for those who ask it often."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from overproof.errors import PluginUnavailable
from overproof.ml.kernels.library import library
from overproof.ml.kernels.operations import (
    LANES,
    backward_weights,
    convolution,
    norm_relu_pool,
    winograd_weights,
)

M = TypeVar("M", bound=nn.Module)

# Preparing takes some seconds, in which a core multiplies some 1e11 times, and an attack sends each
# image through the network tens of times.
_WORTH_PREPARING = 1e9


def fast_network(model: M, multiplications: int, *, device: torch.device) -> tuple[M, str]:
    """The means by which attacks ask `model` fastest, and the reason in a few words.

    Its logits differ from those of `model` by rounding; whether they do follows from the network
    and the work alone, never from a clock, so that equal jobs end in equal bytes.

    Args:
        model: frozen; not changed.
        multiplications: of one pass of all images that will be attacked.
        device: where it is.

    Returns:
        A copy of `model` in eval mode, for gradients by the input only; `model` itself where there
        is nothing to gain.
    """
    if device.type != "cpu":
        return model, "eager on a GPU"
    if multiplications < _WORTH_PREPARING:
        return model, "eager: preparing kernels would take longer than it saves"
    floats = [each for each in model.parameters() if each.is_floating_point()]
    if any(each.dtype is not torch.float32 for each in floats):
        return model, "eager: kernels are for float32"
    if not any(_takes_winograd(module) for module in model.modules()):
        return model, "eager: no layer that there is a kernel for"
    try:
        library()
    except PluginUnavailable as error:
        return model, f"eager: {error}; with one, attacks take half the time"
    fast = copy.deepcopy(model).eval().requires_grad_(False)
    _replace(fast)
    return fast.to(memory_format=torch.channels_last), "kernels for small convolutions"


class WinogradConvolution(nn.Module):
    """A 3 × 3 convolution by fewer multiplications; see `operations.convolution`."""

    weights: Tensor
    weights_back: Tensor
    bias: Tensor

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        weight = plain.weight.detach()
        bias = weight.new_zeros(len(weight)) if plain.bias is None else plain.bias.detach()
        self.register_buffer("weights", winograd_weights(weight))
        self.register_buffer("weights_back", backward_weights(weight))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, K, H, W)."""
        return convolution(x, self.weights, self.weights_back, self.bias)


class NormReluPool(nn.Module):
    """Instance norm, ReLU and 2 × 2 average pooling; see `operations.norm_relu_pool`."""

    weight: Tensor
    bias: Tensor

    def __init__(self, plain: nn.Sequential) -> None:
        super().__init__()
        self.plain = plain  # for images of an odd number of pixels
        norm = cast(nn.GroupNorm, plain[0])
        self.register_buffer("weight", norm.weight.detach())
        self.register_buffer("bias", norm.bias.detach())
        self.epsilon = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H // 2, W // 2)."""
        if x.shape[2] % 2 or x.shape[3] % 2:
            return cast(Tensor, self.plain(x))
        return norm_relu_pool(x, self.weight, self.bias, self.epsilon)


def _replace(module: nn.Module) -> None:
    """Put our layers in the place of those that they equal, all through the network."""
    if isinstance(module, nn.Sequential):
        for i in range(len(module) - 2):
            part = module[i : i + 3]
            if _is_norm_relu_pool(part):
                module[i] = NormReluPool(part)
                module[i + 1], module[i + 2] = nn.Identity(), nn.Identity()
    for name, child in module.named_children():
        if _takes_winograd(child):
            setattr(module, name, WinogradConvolution(cast(nn.Conv2d, child)))
        elif not isinstance(child, NormReluPool):
            _replace(child)


def _takes_winograd(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and (module.kernel_size, module.stride, module.dilation) == ((3, 3), (1, 1), (1, 1))
        and module.padding == (1, 1)
        and module.padding_mode == "zeros"
        and module.groups == 1
        and module.in_channels % LANES == module.out_channels % LANES == 0
    )


def _is_norm_relu_pool(part: nn.Sequential) -> bool:
    norm, relu, pool = part
    return (
        type(norm) is nn.GroupNorm
        and norm.affine
        and norm.num_groups == norm.num_channels
        and norm.num_channels % LANES == 0
        and type(relu) is nn.ReLU
        and type(pool) is nn.AvgPool2d
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.divisor_override is None
    )
