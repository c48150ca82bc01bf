"""Selections of DC-Bench: `…_images.pt` beside `…_labels.pt`, normalised where the name says so.

Source: justincui03/dc_benchmark, distilled_results.
"""

from __future__ import annotations

from overproof.errors import InvalidData
from overproof.ml.formats import tensor_files
from overproof.ml.formats.content import Content, Form, Source, Target, Wishes


def _recognises(source: Source) -> bool:
    return tensor_files.find_benchmark(source) is not None


def _read(source: Source, target: Target, wishes: Wishes) -> Content:
    files = tensor_files.find_benchmark(source)
    if files is None:
        raise InvalidData(f"{source.path} has no file …_images.pt with …_labels.pt beside it")
    files = tensor_files.with_labels(files, wishes.labels)
    normalised = "_normalize_" in files.images[0].name
    return Content(
        images=files.load_images(),
        labels=files.load_labels(),
        spaces=("normalised",) if normalised else ("unit", "normalised"),
        normalisation="dc",
    )


DC_BENCH = Form(
    name="dc-bench",
    summary="DC-Bench: …_images.pt beside …_labels.pt",
    recognises=_recognises,
    read=_read,
)
