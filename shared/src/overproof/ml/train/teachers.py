"""Teachers from the files of the units that trained them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overproof.core.spec import PluginRef
from overproof.errors import InvalidData
from overproof.ml.models.base import Normalized
from overproof.ml.models.stored import load_network
from overproof.ml.shapes import ImageFacts


def load_teacher(result: Mapping[str, Any], weights: Path, facts: ImageFacts) -> Normalized:
    """A teacher, in eval mode and without gradients of its parameters.

    Args:
        result: of the unit that trained it: its `network` and number of `classes`.
        weights: the file of that unit.
        facts: the images that it is to look at.

    Raises:
        InvalidData: it knows other classes, or its weights are unusable.
    """
    network = PluginRef.model_validate(result["network"])
    if result["classes"] != facts.classes:
        raise InvalidData(
            f"the teacher {network.name} knows {result['classes']} classes, these images have "
            f"{facts.classes}; train one on the same data set"
        )
    return load_network(network, facts, weights).eval().requires_grad_(False)
