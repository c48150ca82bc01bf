"""Networks that know nothing of us, called by keyword and wrapped where they are plain modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from overproof.core.registry import Params
from overproof.errors import InvalidSpec
from overproof.ml.models.base import Network
from overproof.ml.shapes import ImageFacts


class Opaque(Network):
    """A module of which nothing is known but that it turns normalised images into logits.

    Its features are its logits: methods that match features match those.

    Args:
        module: (B, C, H, W) → (B, K).
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, K) logits."""
        logits: Tensor = self.module(x)
        return logits

    def classify(self, features: Tensor) -> Tensor:
        """The logits as they are."""
        return features


def make(
    factory: Callable[..., Any], params: Params, facts: ImageFacts, arguments: Mapping[str, str]
) -> Network:
    """The network that `factory` makes of `params` and what it must know of the images.

    Args:
        factory: see `catalog.models.ForeignModelInfo`.
        params: its parameters.
        facts: the images.
        arguments: keyword → name of a fact.

    Raises:
        InvalidSpec: it takes other keywords, or makes no module.
    """
    known = {
        "classes": facts.classes,
        "channels": facts.channels,
        "height": facts.size[0],
        "width": facts.size[1],
    }
    keywords = {keyword: known[fact] for keyword, fact in arguments.items()}
    try:
        made = factory(**params.model_dump(), **keywords)
    except TypeError as error:
        raise InvalidSpec([f"arguments: {error}"], "manifest") from None
    if isinstance(made, Network):
        return made
    if not isinstance(made, nn.Module):
        raise InvalidSpec([f"target: makes a {type(made).__name__}, no torch module"], "manifest")
    return Opaque(made)
