"""Sets of IDM: a pickled tuple of images and labels, written from a GPU.

Images are normalised; where the run's folder says `aug_True` they are canvases of 2 × 2 images.

Source: uitrbn/IDM, IDM_cifar10.py. Its tiles run down the columns, ours along the rows; which tile
comes first changes nothing, since all of a canvas share their label.
"""

from __future__ import annotations

import re

from overproof.errors import InvalidData
from overproof.ml.formats.content import (
    Content,
    Form,
    Source,
    Target,
    Wishes,
    is_images,
    pair_of,
)

_AUGMENTED = re.compile(r"aug_(True|False)")


def _recognises(source: Source) -> bool:
    value = source.value
    return isinstance(value, tuple) and len(value) == 2 and is_images(value[0])


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    images, labels = pair_of(source.value, str(source.path))
    said = _AUGMENTED.findall(str(source.path.absolute()))
    factor = wishes.canvas or ((2 if said[-1] == "True" else 1) if said else None)
    if factor is None:
        raise InvalidData(
            f"{source.path} may hold canvases of 2 × 2 images, and its folder does not say so "
            "(`…aug_True…`): give --canvas 2, or --canvas 1 for plain images"
        )
    return Content(
        images=images,
        labels=labels,
        spaces=("normalised",),
        normalisation="dc",
        canvas=factor,
        notes=() if wishes.canvas else (f"the folder says aug_{said[-1]}",),
    )


IDM = Form(
    name="idm",
    summary="IDM: a pickled tuple of images (canvases) and labels",
    recognises=_recognises,
    read=_read,
)
