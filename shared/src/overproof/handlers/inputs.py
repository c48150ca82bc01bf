"""What several handlers fetch: data sets, distilled sets and networks of other units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overproof.core.ids import UnitId
from overproof.core.spec import DatasetSpec
from overproof.runtime.handler import JobContext

if TYPE_CHECKING:
    from overproof.ml.datasets.base import Dataset
    from overproof.ml.models.base import Normalized
    from overproof.ml.shapes import ImageFacts


def load_dataset(spec: DatasetSpec, context: JobContext) -> Dataset:
    """The data set of `spec`, fetched once into this machine's cache."""
    from overproof.ml.datasets import base

    return base.load(spec, context.dataset(spec))


def load_teacher(unit_id: UnitId, facts: ImageFacts, context: JobContext) -> Normalized:
    """The teacher that the unit `unit_id` trained, on the CPU, in eval mode.

    Raises:
        InvalidData: it knows other classes than those of `facts`.
    """
    from overproof.ml.train import teachers

    return teachers.load_teacher(
        context.input_result(unit_id), context.input(unit_id, "weights"), facts
    )


def rows_at_once(context: JobContext, *, pixels: int = 256) -> int:
    """Images to send through a network at once on the device of the job.

    A CPU is fastest with batches that stay near its caches (100 images of 32 × 32 pixels through a
    ConvNet of width 128 took 0.47 s by 20, 0.75 s at once), a GPU needs many rows to be busy.
    Halved when the job ran out of memory.

    Args:
        context: of the job.
        pixels: of one channel of an image.
    """
    rows = min(256, max(8, 65_536 // pixels)) if context.device.startswith("cpu") else 4096
    return max(1, int(rows * context.batch_scale))
