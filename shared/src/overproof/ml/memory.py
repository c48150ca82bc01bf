"""How much memory work on a network takes, counted before it starts; nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from overproof.errors import OutOfMemory
from overproof.ml.models.base import Network
from overproof.ml.shapes import ImageFacts

# Of an image on its way into a network: as pixels, normalised, augmented and in between.
COPIES = 4

_ROWS = 2  # images of the count
_MIB = 1 << 20


@dataclass(frozen=True)
class NetworkCosts:
    """What a network holds and keeps, in bytes.

    Attributes:
        parameters: of all parameters.
        image: of one image as the network sees it.
        largest: the largest tensor that one image becomes.
        first: what is kept of one image for a gradient.
        second: what is kept of one image for a gradient of a gradient by the parameters.
    """

    parameters: int
    image: int
    largest: int
    first: int
    second: int

    @classmethod
    def of(cls, network: Network, facts: ImageFacts) -> NetworkCosts:
        """The costs of `network`, which is left alone, for images like `facts`.

        Counted are the tensors that autograd keeps, on a copy whose tensors have shapes but no
        values.
        """
        empty = deepcopy(network).to("meta").requires_grad_(True).train()
        x = torch.empty(_ROWS, facts.channels, *facts.size, device="meta", requires_grad=True)
        labels = torch.zeros(_ROWS, dtype=torch.int64, device="meta")
        parameters = list(empty.parameters())

        def loss() -> Tensor:
            return functional.cross_entropy(empty(x), labels)

        def gradient() -> object:
            return torch.autograd.grad(loss(), parameters, create_graph=True)

        sizes = _kept(loss, parameters)
        return cls(
            parameters=sum(_bytes(each) for each in parameters),
            image=_bytes(x) // _ROWS,
            largest=max(sizes) // _ROWS,
            first=sum(sizes) // _ROWS,
            second=sum(_kept(gradient, parameters)) // _ROWS,
        )


@dataclass(frozen=True)
class Part:
    """A part of a demand that grows with a number.

    Attributes:
        name: of the parameter that the number is, empty for what cannot be lowered.
        amount: the number.
        each: bytes for one.
    """

    name: str
    amount: int
    each: int


@dataclass(frozen=True)
class Demand:
    """Bytes that a step takes at its peak, beside what is held between steps."""

    parts: Sequence[Part]

    @property
    def total(self) -> int:
        """Of all parts."""
        return sum(part.amount * part.each for part in self.parts)

    def require(self, free: int, *, what: str, where: str) -> None:
        """Refuse work that does not fit, before it starts.

        Args:
            free: bytes that there are.
            what: the work, for the message.
            where: the device, for the message.

        Raises:
            OutOfMemory: it takes more; the message says what would fit.
        """
        over = self.total - free
        if over <= 0:
            return
        fitting = [
            f"{part.name} {less}"
            for part in self.parts
            if part.name and (less := part.amount - -(-over // max(1, part.each))) >= 1
        ]
        remedy = f"{' or '.join(fitting)} would fit" if fitting else "use a smaller network"
        raise OutOfMemory(
            f"{what} takes about {_shown(self.total)} for a step, {where} has {_shown(free)} free; "
            f"{remedy}, or take a larger device"
        )


def _kept(work: Callable[[], object], without: Sequence[Tensor]) -> list[int]:
    """Bytes of each tensor that autograd keeps in the course of `work`, none twice."""
    known = {each.untyped_storage()._cdata for each in without}
    # Held, so that no storage is freed and another takes its place.
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = work()
    sizes = [tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in known]
    del result
    return sizes


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shown(size_bytes: int) -> str:
    size = size_bytes / _MIB
    return f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size:.0f} MiB"
