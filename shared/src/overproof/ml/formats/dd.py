"""Sets of DD: `results.pth`, a list of steps, each with images, labels and a learning rate.

The set is the last step's. Whose mean and deviation the images are in depends on the data set's
loader there, so it must be named.

Source: SsnL/dataset-distillation, train_distilled_image.py.
"""

from __future__ import annotations

from typing import Any

from overproof.errors import InvalidData
from overproof.ml.formats.content import (
    Content,
    Form,
    Source,
    Target,
    Wishes,
    is_images,
    number_of,
    pair_of,
)


def _is_step(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and is_images(value[0])


def _recognises(source: Source) -> bool:
    value = source.value
    return isinstance(value, list) and bool(value) and all(_is_step(step) for step in value)


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    steps = source.value
    if not isinstance(steps, list) or not steps or not _is_step(steps[-1]):
        raise InvalidData(f"{source.path} has no steps of images, labels and learning rate")
    images, labels = pair_of(steps[-1], f"{source.path}, last step")
    return Content(
        images=images,
        labels=labels,
        spaces=("normalised",),
        learning_rate=abs(number_of(steps[-1][2], f"{source.path}, learning rate")) or None,
        notes=(f"the last of {len(steps)} steps was taken",),
    )


DD = Form(
    name="dd",
    summary="DD: results.pth, a list of (images, labels, learning rate)",
    recognises=_recognises,
    read=_read,
)
