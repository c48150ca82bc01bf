"""A network under attack, as an attack sees it: gradients out, every look at it on the record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.core.threat import Norm
from overproof.ml.attack.ball import distance
from overproof.ml.attack.inputs import logits_of
from overproof.ml.shapes import check_labels

# Float32 rounding of `x + delta` moves a point on the sphere by at most this much.
TOLERANCE = 1e-6

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
            self.logits, self.gradient = logits_and_gradient(model, x, y, checked)
        else:
            with torch.no_grad():
                self.logits = logits_of(model, x)
            check_labels(y, count=len(x), classes=self.logits.shape[1])
        self.prediction = self.logits.argmax(dim=1)
        self.finite = self.logits.isfinite().all(dim=1)

    def repeated(self, times: int) -> CleanPass:
        """The same pass for the batch put `times` times one after another; nothing is computed."""
        return self.taken(torch.arange(len(self.logits), device=self.logits.device).repeat(times))

    def taken(self, rows: Tensor) -> CleanPass:
        """The pass for some rows of the batch, by their (M,) int64 numbers; nothing is computed."""
        other = object.__new__(CleanPass)
        other.logits = self.logits[rows]
        other.prediction = self.prediction[rows]
        other.finite = self.finite[rows]
        other.gradient = None if self.gradient is None else self.gradient[rows]
        return other


class Look(NamedTuple):
    """What one look at the network shows; no history.

    Attributes:
        logits: (B, K).
        loss: (B,), of each sample.
        gradient: (B, C, H, W), of the sum of the losses by the pixels.
    """

    logits: Tensor
    loss: Tensor
    gradient: Tensor


class _Record:
    """What is known so far of each row of a batch, shared by a victim and its subsets."""

    def __init__(self, clean: CleanPass, y: Tensor) -> None:
        wrong = clean.prediction != y
        self.nearest = torch.full(y.shape, torch.inf, device=y.device).masked_fill(wrong, 0.0)
        self.finite = clean.finite.clone()
        self.flat = torch.zeros_like(wrong)
        self.images: Tensor | None = None
        self.forward_passes = 0
        self.backward_passes = 0
        self.notes: list[str] = []
        self.broken_by = torch.full_like(y, -1)


@dataclass(frozen=True)
class Report:
    """What a shorter run of the same attack would have ended with.

    Attributes:
        prediction: (B,) int64, at the iterate.
        worst: (B,) bool, correct at the clean image and at every allowed point up to it.
    """

    prediction: Tensor
    worst: Tensor


class Victim:
    """A frozen network with a batch of its images, under one run of one attack.

    Every point at which the attack looks (for a gradient or a prediction) is judged in passing: a
    sample counts as broken when it is misclassified at any such point inside its threat ball and
    the pixel box. So the worst case over all iterates costs no pass of its own, and an attack can
    neither forget to report an iterate nor win by leaving the ball.

    Args:
        model: pixels in [0, 1] → logits; frozen by the caller.
        x: (B, C, H, W) float32 in [0, 1].
        y: (B,) int64.
        radius: (B,) float32, the budget of each sample in `norm`.
        clean: the clean pass of `model` over `x`.
        norm: what bounds the perturbation.
        report_steps: iterates whose judgement is kept in `reports`.

    Attributes:
        labels: (B,) int64, the true classes.
        reports: number of an iterate → what was known when it was judged.
        clean: what the network says of the clean images.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        radius: Tensor,
        clean: CleanPass,
        *,
        norm: Norm,
        report_steps: Collection[int] = (),
    ) -> None:
        self._model = model
        self._x = x
        self.labels = y
        self._radius = radius
        self._norm = norm
        self._report_steps = report_steps
        self.reports: dict[int, Report] = {}
        self.clean = clean
        self._record = _Record(clean, y)
        self._rows = torch.arange(len(x), device=x.device)

    def subset(self, rows: Tensor) -> Victim:
        """A view on some rows, for attacks that go on with survivors only.

        What the view sees is on the record of the whole batch: flags, passes, images, notes.

        Args:
            rows: (M,) int64, different numbers of rows of this victim.
        """
        other = object.__new__(Victim)
        other._model = self._model
        other._x = self._x[rows]
        other.labels = self.labels[rows]
        other._radius = self._radius[rows]
        other._norm = self._norm
        other._report_steps = ()  # a report is of the whole batch
        other.reports = {}
        other.clean = self.clean.taken(rows)
        other._record = self._record
        other._rows = self._rows[rows]
        return other

    @property
    def broken(self) -> Tensor:
        """(B,) bool, misclassified at some allowed point so far, the clean one included."""
        return self.nearest <= self._radius + TOLERANCE

    @property
    def nearest(self) -> Tensor:
        """(B,) float32, distance of the nearest misclassified point seen so far, else infinite."""
        return self._record.nearest[self._rows]

    @property
    def finite(self) -> Tensor:
        """(B,) bool, all logits so far were finite."""
        return self._record.finite[self._rows]

    @property
    def flat(self) -> Tensor:
        """(B,) bool, some gradient was zero in every pixel while the sample was still right.

        The attack was blind there. A loss that is content with a fooled sample is flat too, but
        not blind.
        """
        return self._record.flat[self._rows]

    @property
    def forward_passes(self) -> int:
        """Rows sent forward through the network; a shared clean pass is not counted."""
        return self._record.forward_passes

    @property
    def backward_passes(self) -> int:
        """Rows sent backward through the network; a shared clean pass is not counted."""
        return self._record.backward_passes

    @property
    def classes(self) -> int:
        """How many classes the network tells apart."""
        return self.clean.logits.shape[1]

    def keep_images(self) -> None:
        """From now on keep the nearest misclassified image of each row, see `images`."""
        if self._record.images is None:
            self._record.images = self._x.clone()

    @property
    def images(self) -> Tensor:
        """(B, C, H, W), the nearest misclassified image seen, else the clean one.

        Only after `keep_images`; of several images at one distance the first.
        """
        assert self._record.images is not None
        return self._record.images[self._rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the attack had to do differently for this network, one line each."""
        return tuple(self._record.notes)

    def note(self, line: str) -> None:
        """Put a line on record, once."""
        if line not in self._record.notes:
            self._record.notes.append(line)

    @property
    def broken_by(self) -> Tensor:
        """(B,) int64, which part of a cascade broke each row, see `credit`; else -1."""
        return self._record.broken_by[self._rows]

    def credit(self, rows: Tensor, part: int) -> None:
        """Put on record that the part of that number broke the rows of the (B,) bool mask."""
        self._record.broken_by[self._rows[rows]] = part

    def network(self) -> nn.Module:
        """The network for code that is not ours: its passes count, its points are not judged."""
        return _Counted(self._model, self._count)

    def gradient(
        self, x_adv: Tensor, loss: Loss = cross_entropy_sum, *, step: int | None = None
    ) -> Tensor:
        """Gradient of `loss(logits, y)` by the pixels of `x_adv`: one forward, one backward pass.

        Args:
            x_adv: (B, C, H, W) float32.
            loss: (B, K) logits and (B,) labels → a scalar that is a sum over samples.
            step: how many steps led to `x_adv`, where it is the iterate that a run of so many
                steps would return.

        Returns:
            (B, C, H, W), no history.
        """
        logits, gradient = logits_and_gradient(self._model, x_adv, self.labels, loss)
        self._count(forward=len(x_adv), backward=len(x_adv))
        self._judge(x_adv, logits)
        self._note_flat(gradient, logits)
        self._report(step, logits)
        return gradient

    def gradients_off_record(self, points: Tensor) -> Tensor:
        """Gradients of the cross entropy at points that are no iterates, such as neighbours of one.

        They count as passes, but neither as visited points nor as evidence of a flat gradient. On
        a GPU they are one batch; on a CPU, which gains nothing by that, one batch after another.

        Args:
            points: (N, B, C, H, W) float32, N points for each sample.

        Returns:
            (N, B, C, H, W), no history.
        """
        count, rows = points.shape[:2]
        together = 1 if points.device.type == "cpu" else count
        gradients = []
        for chunk in torch.split(points, together):
            y = self.labels.repeat(len(chunk))
            _, gradient = logits_and_gradient(
                self._model, chunk.flatten(0, 1), y, cross_entropy_sum
            )
            gradients.append(gradient.view_as(chunk))
        self._count(forward=count * rows, backward=count * rows)
        return torch.cat(gradients)

    def look(self, x_adv: Tensor, loss: Loss, *, draws: int = 1, step: int | None = None) -> Look:
        """Logits, losses and gradient at `x_adv`: one forward, one backward pass a draw.

        Args:
            x_adv: (B, C, H, W) float32.
            loss: (B, K) logits and (B,) labels → (B,), each of its own row alone.
            draws: for networks whose output is random: the gradient is the mean over so many
                passes, logits and losses are those of the last one, and that one is judged.
            step: as for `gradient`.
        """
        x_adv = x_adv.detach().requires_grad_(True)
        total = torch.zeros_like(x_adv)
        for _ in range(draws):
            logits = logits_of(self._model, x_adv)
            losses = loss(logits, self.labels)
            (gradient,) = torch.autograd.grad(losses.sum(), x_adv)
            total += gradient
        x_adv, logits, gradient = x_adv.detach(), logits.detach(), total / draws
        self._count(forward=draws * len(x_adv), backward=draws * len(x_adv))
        self._judge(x_adv, logits)
        self._note_flat(gradient, logits)
        self._report(step, logits)
        return Look(logits, losses.detach(), gradient)

    def boundaries(self, x_adv: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The linear view of each class at `x_adv`: one forward pass, one backward pass a class.

        Args:
            x_adv: (B, C, H, W) float32.

        Yields:
            For each class, (B,) its logit minus that of the true class, and (B, C, H, W) the
            gradient of it by the pixels; both are 0 in the rows whose true class it is.
        """
        x_adv = x_adv.detach().requires_grad_(True)
        logits = logits_of(self._model, x_adv)
        differences = logits - logits.gather(1, self.labels.view(-1, 1))
        self._count(forward=len(x_adv), backward=0)
        self._judge(x_adv.detach(), logits.detach())
        for difference in differences.unbind(1):
            (gradient,) = torch.autograd.grad(difference.sum(), x_adv, retain_graph=True)
            self._count(forward=0, backward=len(x_adv))
            yield difference.detach(), gradient

    def clean_gradient(self) -> Tensor:
        """Gradient of the cross entropy at the clean images; free where the clean pass has it."""
        if self.clean.gradient is None:
            return self.gradient(self._x)
        self._note_flat(self.clean.gradient, self.clean.logits)
        return self.clean.gradient

    def predict(self, x_adv: Tensor) -> Tensor:
        """(B,) int64 classes of `x_adv`: one forward pass."""
        return self.logits(x_adv).argmax(dim=1)

    def logits(self, x_adv: Tensor) -> Tensor:
        """(B, K) logits at `x_adv`: one forward pass."""
        with torch.no_grad():
            logits = logits_of(self._model, x_adv)
        self._count(forward=len(x_adv), backward=0)
        self._judge(x_adv, logits)
        return logits

    def _count(self, *, forward: int, backward: int) -> None:
        self._record.forward_passes += forward
        self._record.backward_passes += backward

    def _judge(self, x_adv: Tensor, logits: Tensor) -> None:
        record, rows = self._record, self._rows
        values = x_adv.flatten(1)  # aminmax takes ten times as long by rows as amin and amax
        in_box = (values.amin(dim=1) >= 0.0) & (values.amax(dim=1) <= 1.0)
        wrong = (logits.argmax(dim=1) != self.labels) & in_box
        away = distance(x_adv, self._x, self._norm).masked_fill(~wrong, torch.inf)
        nearest = record.nearest[rows]
        closer = away < nearest
        # Asking a GPU would wait for it; asking a CPU saves moving images for nothing.
        if record.images is not None and (x_adv.is_cuda or bool(closer.any())):
            images = record.images[rows]
            record.images[rows] = torch.where(closer.view(-1, 1, 1, 1), x_adv, images)
        record.nearest[rows] = torch.minimum(nearest, away)
        record.finite[rows] &= logits.isfinite().all(dim=1)

    def _report(self, step: int | None, logits: Tensor) -> None:
        if step is not None and step in self._report_steps:
            self.reports[step] = Report(logits.argmax(dim=1), ~self.broken)

    def _note_flat(self, gradient: Tensor, logits: Tensor) -> None:
        zero = gradient.flatten(1).abs().amax(dim=1) == 0
        self._record.flat[self._rows] |= zero & (logits.argmax(dim=1) == self.labels)


class _Counted(nn.Module):
    """Logits of a model, with every row on the record of a victim."""

    def __init__(self, model: nn.Module, count: Callable[..., None]) -> None:
        super().__init__()
        self.model = model
        self._count = count

    def forward(self, x: Tensor) -> Tensor:
        logits = logits_of(self.model, x)
        self._count(forward=len(x), backward=0)
        if logits.requires_grad:
            count = self._count
            logits.register_hook(  # type: ignore[no-untyped-call]
                lambda _: count(forward=0, backward=len(x))
            )
        return logits


def logits_and_gradient(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Logits at `x` and the gradient of `loss(logits, y)` by `x`, both without history."""
    x = x.detach().requires_grad_(True)
    logits = logits_of(model, x)
    (gradient,) = torch.autograd.grad(loss(logits, y), x)
    return logits.detach(), gradient
