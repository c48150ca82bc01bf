"""What several handlers fetch: data sets, distilled sets and networks of other units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overproof.core.spec import DatasetSpec
from overproof.runtime.handler import JobContext

if TYPE_CHECKING:
    from overproof.ml.datasets.base import Dataset


def load_dataset(spec: DatasetSpec, context: JobContext) -> Dataset:
    """The data set of `spec`, fetched once into this machine's cache."""
    from overproof.ml.datasets import base

    return base.load(spec, context.dataset(spec))


def rows_at_once(context: JobContext) -> int:
    """Images to send through a network at once on the device of the job.

    A CPU is fastest with batches that stay near its caches; a GPU needs many rows to be busy. The
    number is halved when the job ran out of memory.
    """
    rows = 256 if context.device.startswith("cpu") else 4096
    return max(1, int(rows * context.batch_scale))
