"""Sets of DC, DSA and DM: `res_….pt`, a dict with several independent sets under `data`.

`{"data": [[images, labels], …], "accs_all_exps": {…}}`, images normalised, labels classes. Its
readers take the last set. IDM writes the same form, with canvases.

Source: VICO-UoE/DatasetCondensation, main.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from overproof.errors import InvalidData
from overproof.ml.formats.content import Content, Form, Source, Target, Wishes, pair_of


def _recognises(source: Source) -> bool:
    return isinstance(source.value, Mapping) and isinstance(source.value.get("data"), list | tuple)


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    value = source.value
    sets = value.get("data") if isinstance(value, Mapping) else None
    if not isinstance(sets, list | tuple) or not sets:
        raise InvalidData(f"{source.path} has no list of sets under `data`")
    item = -1 if wishes.item is None else wishes.item
    if not -len(sets) <= item < len(sets):
        raise InvalidData(f"{source.path} has {len(sets)} sets, none of number {item}")
    images, labels = pair_of(sets[item], f"{source.path}, set {item}")
    chosen = item % len(sets)
    notes = []
    if len(sets) > 1:
        notes.append(f"set {chosen} of {len(sets)} was taken; --item chooses another")
    if "idm" in str(source.path).lower() and wishes.canvas is None:
        notes.append("IDM writes this form with canvases of 2 × 2 images; --canvas 2 decodes them")
    return Content(
        images=images,
        labels=labels,
        spaces=("normalised",),
        normalisation="dc",
        notes=tuple(notes),
    )


DC = Form(
    name="dc",
    summary="DC, DSA, DM: a dict with a list of [images, labels] under `data`",
    recognises=_recognises,
    read=_read,
)
