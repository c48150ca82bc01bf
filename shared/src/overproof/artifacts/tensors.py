"""Arrays in files: safetensors, which holds nothing but numbers and text and is never executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from overproof.core.canonical import canonical_json
from overproof.errors import MalformedArtifact

# The library writes several metadata entries in random order; in one entry, bytes are repeatable.
_METADATA = "overproof"


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays and text to one file; equal arguments give equal bytes.

    Args:
        path: written anew; its folder exists.
        tensors: name → array of bool, integers or floats, any shape and memory layout.
        metadata: short texts about the arrays.

    Raises:
        TypeError: an array of objects or text, or metadata that is not text.
        ValueError: a tensor named `__metadata__`, which the format keeps for itself.
    """
    if "__metadata__" in tensors:
        raise ValueError("a tensor cannot be named '__metadata__'; use another name")
    for name, array in tensors.items():
        if array.dtype.kind not in "biuf":
            raise TypeError(f"tensor {name!r} has dtype {array.dtype}; store numbers only")
    texts = dict(metadata or {})
    for key, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"metadata {key!r} is {text!r}; store text only")
    arrays = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    save_file(arrays, path, {_METADATA: canonical_json(texts).decode()} if texts else None)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the metadata of a safetensors file, of `write_tensors` or of another tool.

    Raises:
        MalformedArtifact: the file is damaged, is of another format, or has a dtype that numpy
            has not.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
        if _METADATA in metadata:
            metadata = dict(json.loads(metadata[_METADATA]))
    except (SafetensorError, TypeError, AttributeError, ValueError) as error:
        # The library raises the middle two for dtypes that numpy has not, such as bfloat16.
        raise MalformedArtifact(
            f"{path.name} is not a readable safetensors file: {error}; make it again"
        ) from error
    return arrays, metadata
