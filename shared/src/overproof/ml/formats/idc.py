"""Sets of IDC and DREAM: `data.pt`, a list of images and labels.

Images are canvases of m × m small images, pixels in [0, 1] that are not normalised. m stands in the
name of the run's folder (`…_factor2_…`) or nowhere.

Source: snu-mllab/Efficient-Dataset-Condensation, condense.py; lyq312318224/DREAM.
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

_FACTOR = re.compile(r"factor(\d+)")


def _recognises(source: Source) -> bool:
    if source.is_folder:
        return "data.pt" in source.names()
    value = source.value
    return isinstance(value, list) and len(value) == 2 and is_images(value[0])


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    file = Source(source.path / "data.pt") if source.is_folder else source
    images, labels = pair_of(file.value, str(file.path))
    named = [int(factor) for factor in _FACTOR.findall(str(file.path.absolute()))]
    factor = wishes.canvas or (named[-1] if named else None)
    if factor is None:
        raise InvalidData(
            f"{file.path} may hold canvases of m × m images, and its folder does not say m "
            "(`…factor2…`): give --canvas, 1 for plain images"
        )
    return Content(
        images=images,
        labels=labels,
        spaces=("unit",),
        canvas=factor,
        notes=() if wishes.canvas else (f"the folder says factor {factor}",),
    )


IDC = Form(
    name="idc",
    summary="IDC, DREAM: data.pt, a list of images in [0, 1] (canvases) and labels",
    recognises=_recognises,
    read=_read,
)
