"""Random streams that follow from a seed and the purpose they serve, never from global state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from overproof.core.canonical import canonical_json

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def generator(seed: int, *labels: str | int) -> torch.Generator:
    """A CPU generator for one purpose, e.g. `generator(seed, "real-batch", step)`.

    Equal arguments give equal streams in every process. Streams of different arguments have
    nothing in common: the seed of each is a hash over all of them, so seed 1 step 2 is not seed 2
    step 1, and the label 1 is not the label "1". A loop that names its step as a label draws the
    same numbers after it was stopped and resumed, without any generator state in its checkpoint.

    torch's CPU engine takes 32 bits of seed, so of 10,000 streams two are equal with a probability
    of one in a hundred: harmless between the steps of a run, too few for cryptography.

    Args:
        seed: the seed of the unit of work.
        *labels: the purpose, then counters such as step and class.
    """
    return torch.Generator().manual_seed(_derived(seed, labels))


def seeded_init(factory: Callable[[], ModuleT], seed: int, *labels: str | int) -> ModuleT:
    """The module that `factory` builds, its initial values drawn from `generator(seed, *labels)`.

    Modules of torch, torchvision and timm draw their initial values from the global CPU generator.
    It is seeded for the time of the call and then put back, so nothing outside notices. Not
    thread-safe: another thread that draws from the global generator meanwhile disturbs both.

    Args:
        factory: builds the module on the CPU, in float32.
        seed: the seed of the unit of work.
        *labels: the purpose, as in `generator`.
    """
    state = torch.default_generator.get_state()
    # torch.manual_seed would seed the accelerators too, and fork_rng would start them.
    torch.default_generator.manual_seed(_derived(seed, labels))
    try:
        with torch.device("cpu"):
            return factory()
    finally:
        torch.default_generator.set_state(state)


def _derived(seed: int, labels: tuple[str | int, ...]) -> int:
    digest = hashlib.sha256(canonical_json([seed, *labels])).digest()
    return int.from_bytes(digest[:4], "big")
