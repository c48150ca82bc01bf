"""A network under attack, as an attack sees it: gradients out, every look at it on the record."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from overproof.core.threat import Norm
from overproof.ml.attack.inputs import logits_of
from overproof.ml.attack.passes import CleanPass, Loss, cross_entropy_sum, logits_and_gradient
from overproof.ml.attack.record import TOLERANCE, Record, Report


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
        self._record = Record(clean, y)
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
        return _Counted(self._model, self._record)

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
        self._record.count(forward=len(x_adv), backward=len(x_adv))
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
        self._record.count(forward=count * rows, backward=count * rows)
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
        self._record.count(forward=draws * len(x_adv), backward=draws * len(x_adv))
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
        self._record.count(forward=len(x_adv), backward=0)
        self._judge(x_adv.detach(), logits.detach())
        for difference in differences.unbind(1):
            (gradient,) = torch.autograd.grad(difference.sum(), x_adv, retain_graph=True)
            self._record.count(forward=0, backward=len(x_adv))
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
        self._record.count(forward=len(x_adv), backward=0)
        self._judge(x_adv, logits)
        return logits

    def _judge(self, x_adv: Tensor, logits: Tensor) -> None:
        self._record.judge(self._rows, self._x, self.labels, x_adv, logits, self._norm)

    def _report(self, step: int | None, logits: Tensor) -> None:
        if step is not None and step in self._report_steps:
            self.reports[step] = Report(logits.argmax(dim=1), ~self.broken)

    def _note_flat(self, gradient: Tensor, logits: Tensor) -> None:
        right = logits.argmax(dim=1) == self.labels
        self._record.note_flat(self._rows, gradient, right)


class _Counted(nn.Module):
    """Logits of a model, with every row on the record of a victim."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        super().__init__()
        self.model = model
        self._record = record

    def forward(self, x: Tensor) -> Tensor:
        logits = logits_of(self.model, x)
        self._record.count(forward=len(x), backward=0)
        if logits.requires_grad:
            count = self._record.count
            logits.register_hook(  # type: ignore[no-untyped-call]
                lambda _: count(forward=0, backward=len(x))
            )
        return logits
