"""The packed form of a data set: one safetensors file, equal bytes for equal contents.

Tensors `train_images`, `train_labels`, `test_images`, `test_labels`, and one metadata entry with
the facts as JSON. Its SHA-256 is the version of the data set.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from overproof.core.canonical import canonical_json
from overproof.core.faults import faults_of
from overproof.errors import InvalidData, MalformedArtifact
from overproof.ml.datasets.arrays import Arrays, DatasetFacts, check

FORMAT_VERSION = 1
_ENTRY = "overproof.dataset"


def write(path: Path, facts: DatasetFacts, arrays: Arrays) -> None:
    """Write `arrays` to `path`, all of it or nothing.

    Raises:
        InvalidData: the arrays are no data set of `facts.classes` classes.
    """
    check(arrays, facts.classes)
    # A single entry, since safetensors writes several in no fixed order.
    entry = canonical_json({"format": FORMAT_VERSION, **facts.model_dump(mode="json")}).decode()
    partial = path.with_name(path.name + ".partial")
    try:
        # safetensors writes the memory of an array as it lies, whatever its strides say.
        tensors = {name: np.ascontiguousarray(array) for name, array in arrays._asdict().items()}
        save_file(tensors, partial, metadata={_ENTRY: entry})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> tuple[DatasetFacts, Arrays]:
    """Read what `write` wrote, and check it.

    Raises:
        MalformedArtifact: the file is not a packed data set, or one of a newer release.
        InvalidData: it holds arrays that are no data set.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            entry = (file.metadata() or {}).get(_ENTRY)
            if entry is None or set(file.keys()) != set(Arrays._fields):
                raise MalformedArtifact(f"{path} is {_NOT_PACKED}")
            facts = _facts(path, entry)
            arrays = Arrays(**{name: file.get_tensor(name) for name in Arrays._fields})
    except (SafetensorError, OSError) as error:
        raise MalformedArtifact(f"{path} is {_NOT_PACKED} ({error})") from None
    check(arrays, facts.classes)
    if not arrays.train_images.shape[1] == len(facts.mean) == len(facts.std):
        raise InvalidData(f"{path} has not one mean and deviation for each channel; add it again")
    return facts, arrays


_NOT_PACKED = "not a packed data set; make one with `overproof data add NAME PATH`"


def _facts(path: Path, entry: str) -> DatasetFacts:
    try:
        value = json.loads(entry)
        version = value.pop("format")
    except (ValueError, AttributeError, KeyError):
        raise MalformedArtifact(f"{path} is {_NOT_PACKED}") from None
    if version != FORMAT_VERSION:
        raise MalformedArtifact(
            f"{path} has format {version}, this release reads {FORMAT_VERSION}; "
            "update overproof or add the data set again"
        )
    try:
        return DatasetFacts.model_validate(value)
    except ValidationError as error:
        faults = "; ".join(faults_of(error, model=DatasetFacts))
        raise MalformedArtifact(f"{path} has unusable facts: {faults}") from None
