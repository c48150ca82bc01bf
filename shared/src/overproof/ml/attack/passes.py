"""Passes through a frozen network: logits, gradients by the pixels, the clean pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.ml.attack.inputs import logits_of
from overproof.ml.shapes import check_labels

# (B, K) logits and (B,) labels → a scalar that is a sum over samples, or (B,) for each sample.
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy_sum(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy summed over the batch: a mean would divide gradients by the batch size."""
    return functional.cross_entropy(logits, y, reduction="sum")


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode and no parameter gradients inside; modes and flags are put back after."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, required in flags:
            parameter.requires_grad_(required)


def logits_and_gradient(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Logits at `x` and the gradient of `loss(logits, y)` by `x`, both without history."""
    x = x.detach().requires_grad_(True)
    logits = logits_of(model, x)
    (gradient,) = torch.autograd.grad(loss(logits, y), x)
    return logits.detach(), gradient


class CleanPass:
    """What a network says of clean images, computed once and shared by all attacks on them.

    Args:
        model: pixels in [0, 1] → logits; frozen by the caller.
        x: (B, C, H, W) float32 in [0, 1].
        y: (B,) int64.
        with_gradient: also take the gradient of the cross entropy, which FGSM and BIM start from;
            it costs one backward pass, and the forward pass serves both.

    Raises:
        ShapeError: the network's output is no (B, K) logits, or the labels are not (B,) int64.
        ValueError: a label is no class of the network.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, *, with_gradient: bool) -> None:
        def checked(logits: Tensor, y: Tensor) -> Tensor:
            # A label out of range would end in an assertion on the device, which ends the process.
            check_labels(y, count=len(x), classes=logits.shape[1])
            return cross_entropy_sum(logits, y)

        self.gradient: Tensor | None = None
        if with_gradient:
            logits, self.gradient = logits_and_gradient(model, x, y, checked)
        else:
            with torch.no_grad():
                logits = logits_of(model, x)
            check_labels(y, count=len(x), classes=logits.shape[1])
        self._take(logits)

    def repeated(self, times: int) -> CleanPass:
        """The same pass for the batch put `times` times one after another; nothing is computed."""
        return self.taken(torch.arange(len(self.logits), device=self.logits.device).repeat(times))

    def taken(self, rows: Tensor) -> CleanPass:
        """The pass for some rows of the batch, by their (M,) int64 numbers; nothing is computed."""
        gradient = None if self.gradient is None else self.gradient[rows]
        return CleanPass.known(self.logits[rows], gradient)

    @classmethod
    def known(cls, logits: Tensor, gradient: Tensor | None = None) -> CleanPass:
        """The pass that gave these (B, K) logits; nothing is computed or checked.

        Args:
            logits: (B, K) float32.
            gradient: (B, C, H, W), of the cross entropy by the pixels, if it is known.
        """
        made = object.__new__(cls)
        made.gradient = gradient
        made._take(logits)
        return made

    def to(self, device: torch.device) -> CleanPass:
        """The same pass on another device."""
        gradient = None if self.gradient is None else self.gradient.to(device)
        return CleanPass.known(self.logits.to(device), gradient)

    def _take(self, logits: Tensor) -> None:
        self.logits = logits
        self.prediction = logits.argmax(dim=1)
        self.finite = logits.isfinite().all(dim=1)
