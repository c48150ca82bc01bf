"""What a distillation shows while it runs: its losses and pictures of its images.

Files for people, kept beside the results and part of none: `losses.csv`, `images-STEP.png` (STEP
of 12 digits, the steps done before it) and `index.json` (`method`, `dataset`, `images_per_class`,
`total_steps`; `rows`, the names of the classes that a picture shows, from the top; `columns`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from overproof.core.clock import Clock
from overproof.core.spec import DistilledSetBody
from overproof.handlers.losses import LossCurve
from overproof.runtime.handler import JobContext

if TYPE_CHECKING:
    from torch import Tensor

    from overproof.ml.datasets.base import Dataset
    from overproof.ml.distill.base import DistillationMethod

_PICTURES = 10  # of a run, besides the first
_LOSSES_EVERY_S = 10.0


class Showing:
    """Shows one distillation; used in turn with its steps.

    When pictures are made follows from the number of steps, never from the clock.

    Args:
        method: whose images are shown.
        body: what was asked for.
        dataset: names of the classes.
        context: takes the files.
        clock: how often losses are written.
    """

    def __init__(
        self,
        method: DistillationMethod[Any],
        body: DistilledSetBody,
        dataset: Dataset,
        context: JobContext,
        *,
        clock: Clock,
    ) -> None:
        from overproof.ml.distill.picture import Grid

        self._method = method
        self._body = body
        self._dataset = dataset
        self._context = context
        self._clock = clock
        self._grid = Grid.of(dataset.classes, body.images_per_class, dataset.facts.size)
        self._picture_every = max(1, -(-method.total_steps // _PICTURES))
        self._written_at = clock.monotonic()
        self._written_rows = 0
        self.losses = LossCurve(method.total_steps)

    def begin(self, first: int, losses: str) -> None:
        """Before step `first`, with the losses of the steps before it, empty without any."""
        self._write("index.json", json.dumps(self._index(), indent=1))
        if losses:
            self.losses.restore(losses, first)
            self.flush()
        if first == 0:
            self._picture(0, self._method.preview())

    def after(self, step: int, scalars: Mapping[str, float]) -> None:
        """After step number `step`, counted from 1."""
        self.losses.add(step, scalars)
        if step % self._picture_every == 0 and step < self._method.total_steps:
            self._picture(step, self._method.preview())
        elif self._clock.monotonic() - self._written_at < _LOSSES_EVERY_S:
            return
        self.flush()

    def flush(self) -> None:
        """Write the losses if there are new ones."""
        self._written_at = self._clock.monotonic()
        if len(self.losses) != self._written_rows:
            self._written_rows = len(self.losses)
            self._write("losses.csv", self.losses.text())

    def result(self, images: Tensor) -> None:
        """The (K · n, C, H, W) images of the finished set."""
        self._picture(self._method.total_steps, images)

    def _index(self) -> Mapping[str, Any]:
        return {
            "method": self._body.method.name,
            "dataset": self._dataset.name,
            "images_per_class": self._body.images_per_class,
            "total_steps": self._method.total_steps,
            "rows": self._dataset.class_names[: self._grid.rows],
            "columns": self._grid.columns,
        }

    def _picture(self, step: int, images: Tensor | None) -> None:
        from overproof.ml.distill.picture import write_picture

        if images is None:
            return
        name = f"images-{step:012d}.png"
        path = self._context.workdir / name
        write_picture(images, self._grid, self._dataset.classes, path)
        self._context.show(name, path)
        path.unlink()

    def _write(self, name: str, text: str) -> None:
        path = self._context.workdir / name
        path.write_text(text)
        self._context.show(name, path)
