"""A network under attack, as an attack sees it: gradients out, every look at it on the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.ml.attack.ball import linf_distance

# Float32 rounding of `x + delta` moves a point on the sphere by at most this much.
TOLERANCE = 1e-6


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


class CleanPass:
    """What a network says of clean images, computed once and shared by all attacks on them.

    Args:
        model: pixels in [0, 1] → logits; frozen by the caller.
        x: (B, C, H, W) float32 in [0, 1].
        y: (B,) int64.
        with_gradient: also take the gradient of the cross entropy, which FGSM and BIM start from;
            it costs one backward pass, and the forward pass serves both.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, *, with_gradient: bool) -> None:
        self.gradient: Tensor | None = None
        if with_gradient:
            logits, self.gradient = logits_and_gradient(model, x, y, cross_entropy_sum)
        else:
            with torch.no_grad():
                logits = model(x)
        self.prediction = logits.argmax(dim=1)
        self.finite = logits.isfinite().all(dim=1)

    def repeated(self, times: int) -> CleanPass:
        """The same pass for the batch put `times` times one after another; nothing is computed."""
        other = object.__new__(CleanPass)
        other.prediction = self.prediction.repeat(times)
        other.finite = self.finite.repeat(times)
        other.gradient = None if self.gradient is None else self.gradient.repeat(times, 1, 1, 1)
        return other


class Victim:
    """A frozen network with a batch of its images, under one run of one attack.

    Every point at which the attack looks (for a gradient or a prediction) is judged in passing: a
    sample counts as broken when it is misclassified at any such point inside its threat ball and
    the pixel box. So the worst case over all iterates costs no pass of its own, and an attack can
    neither forget to report an iterate nor win by leaving the ball.

    Attributes:
        labels: (B,) int64, the true classes.
        broken: (B,) bool, misclassified at some allowed point so far, the clean one included.
        finite: (B,) bool, all logits so far were finite.
        flat: (B,) bool, some gradient was zero in every pixel.
        forward_passes, backward_passes: rows sent through the network, shared passes not counted.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, clean: CleanPass
    ) -> None:
        self._model = model
        self._x = x
        self.labels = y
        self._radius = radius
        self._clean = clean
        self.broken = clean.prediction != y
        self.finite = clean.finite.clone()
        self.flat = torch.zeros_like(self.broken)
        self.forward_passes = 0
        self.backward_passes = 0

    def gradient(
        self, x_adv: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy_sum
    ) -> Tensor:
        """Gradient of `loss(logits, y)` by the pixels of `x_adv`: one forward, one backward pass.

        Args:
            x_adv: (B, C, H, W) float32.
            loss: (B, K) logits and (B,) labels → a scalar that is a sum over samples.

        Returns:
            (B, C, H, W), no history.
        """
        logits, gradient = logits_and_gradient(self._model, x_adv, self.labels, loss)
        self.forward_passes += len(x_adv)
        self.backward_passes += len(x_adv)
        self._judge(x_adv, logits)
        self._note_flat(gradient)
        return gradient

    def clean_gradient(self) -> Tensor:
        """Gradient of the cross entropy at the clean images; free where the clean pass has it."""
        if self._clean.gradient is None:
            return self.gradient(self._x)
        self._note_flat(self._clean.gradient)
        return self._clean.gradient

    def predict(self, x_adv: Tensor) -> Tensor:
        """(B,) int64 classes of `x_adv`: one forward pass."""
        with torch.no_grad():
            logits: Tensor = self._model(x_adv)
        self.forward_passes += len(x_adv)
        return self._judge(x_adv, logits)

    def _judge(self, x_adv: Tensor, logits: Tensor) -> Tensor:
        prediction = logits.argmax(dim=1)
        values = x_adv.flatten(1)
        allowed = (
            (linf_distance(x_adv, self._x) <= self._radius + TOLERANCE)
            & (values.amin(dim=1) >= 0.0)
            & (values.amax(dim=1) <= 1.0)
        )
        self.broken |= allowed & (prediction != self.labels)
        self.finite &= logits.isfinite().all(dim=1)
        return prediction

    def _note_flat(self, gradient: Tensor) -> None:
        self.flat |= gradient.flatten(1).abs().amax(dim=1) == 0


def logits_and_gradient(
    model: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Logits at `x` and the gradient of `loss(logits, y)` by `x`, both without history."""
    x = x.detach().requires_grad_(True)
    logits: Tensor = model(x)
    (gradient,) = torch.autograd.grad(loss(logits, y), x)
    return logits.detach(), gradient
