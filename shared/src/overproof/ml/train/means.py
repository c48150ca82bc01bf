"""Which means trains networks fastest on a device; the choice follows from the work alone."""

from __future__ import annotations

import shutil
from enum import StrEnum

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from overproof.ml.shapes import ImageFacts


class Means(StrEnum):
    """How the steps of several networks are computed."""

    EAGER = "eager"
    COMPILED = "compiled"
    STACKED = "stacked"


# Compiling forward and backward of a ConvNet takes 10 to 60 s of two CPU cores, for full and last
# batches each, and saves about 40 % of a step; a core multiplies about 15e9 times a second. So it
# pays from some minutes of work on: 4e12 multiplications.
_WORTH_COMPILING = 4e12

# Values of float32, 8 MiB: 256 images of 32 × 32 pixels took a ConvNet of width 128 0.97 s forward
# at once, 0.80 s by 16; gradients by its weights 2.4 s and 1.5 s.
_NEAR_CACHES = 2**21


def has_batch_statistics(network: nn.Module) -> bool:
    """Whether images of a batch influence each other in training mode."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def choose_means(
    network: nn.Module, facts: ImageFacts, *, device: torch.device, images: int, epochs: int
) -> tuple[Means, str]:
    """The means for networks like `network`, and the reason in a few words.

    It depends on what each network has to do, not on how many are trained together: compiled and
    eager steps differ in their last bits, and a network must not depend on its neighbours.

    Args:
        network: one of them, on any device.
        facts: the images.
        device: where they are trained.
        images: how many are seen in an epoch.
        epochs: how many there are.
    """
    if has_batch_statistics(network):
        return Means.EAGER, "batch statistics"
    if device.type == "cuda":
        return Means.STACKED, "one launch for all networks"
    return compiled_or_eager(3 * multiplications(network, facts) * images * epochs)


def compiled_or_eager(work: float) -> tuple[Means, str]:
    """Whether `work` multiplications on a CPU pay for a compilation, and why in a few words."""
    if work < _WORTH_COMPILING:
        return Means.EAGER, "compiling would take longer than it saves"
    if shutil.which("c++") is None and shutil.which("g++") is None:
        return Means.EAGER, "no C++ compiler; install one for more speed"
    return Means.COMPILED, "long work on a CPU"


def multiplications(network: nn.Module, facts: ImageFacts) -> int:
    """Multiplications of convolutions and linear layers in one forward pass of one image."""
    # Every output value is a product sum over one filter (convolution) or row (linear).
    return sum(values * weight[0].numel() for weight, values in _layers(network, facts))


def rows_near_caches(network: nn.Module, facts: ImageFacts) -> int:
    """Images whose largest layer fits the caches of a CPU; at least 1."""
    largest = max((values for _, values in _layers(network, facts)), default=1)
    return max(1, _NEAR_CACHES // largest)


def _layers(network: nn.Module, facts: ImageFacts) -> list[tuple[torch.Tensor, int]]:
    """Weight and number of output values of each convolution and linear layer, for one image."""
    found: list[tuple[torch.Tensor, int]] = []

    def note(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        found.append((weight, output.numel()))

    handles = [
        module.register_forward_hook(note)
        for module in network.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    training = network.training
    try:
        network.eval()
        with torch.no_grad():
            device = next(network.parameters()).device
            network(torch.zeros(1, facts.channels, *facts.size, device=device))
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()
    return found
