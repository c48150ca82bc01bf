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
    work = 3 * multiplications(network, facts) * images * epochs
    if work < _WORTH_COMPILING:
        return Means.EAGER, "compiling would take longer than it saves"
    if shutil.which("c++") is None and shutil.which("g++") is None:
        return Means.EAGER, "no C++ compiler; install one to train faster"
    return Means.COMPILED, "long training on a CPU"


def multiplications(network: nn.Module, facts: ImageFacts) -> int:
    """Multiplications of convolutions and linear layers in one forward pass of one image."""
    total = 0

    def count(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        # Every output value is a product sum over one filter (convolution) or row (linear).
        total += output.numel() * weight[0].numel()

    handles = [
        module.register_forward_hook(count)
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
    return total
