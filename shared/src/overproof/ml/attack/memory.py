"""How many images a device has memory for."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from overproof.ml.shapes import ImageFacts

# Of the memory that the device has, not of what is free now: equal jobs use equal batches.
_SHARE = 0.5
# Outputs of all layers are kept for the way back; then there are their gradients, and what the
# layers themselves work in.
_COPIES = 3
_BYTES = 4


def rows_that_fit(network: nn.Module, facts: ImageFacts, device: torch.device) -> int:
    """Images whose gradients can be taken at once in half of the device's memory; at least 1.

    Args:
        network: of normalised images, on any device.
        facts: the images.
        device: where they are attacked.
    """
    if device.type == "cuda":
        memory = int(torch.cuda.get_device_properties(device).total_memory)
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, int(_SHARE * memory / (_COPIES * _BYTES * values_between(network, facts))))


def values_between(network: nn.Module, facts: ImageFacts) -> int:
    """Numbers that the layers of a network put out for one image."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel()

    leaves = [module for module in network.modules() if not list(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        with torch.no_grad():
            device = next(network.parameters()).device
            network(torch.zeros(1, facts.channels, *facts.size, device=device))
    finally:
        for module, training in modes:
            module.training = training
        for handle in handles:
            handle.remove()
    return total
