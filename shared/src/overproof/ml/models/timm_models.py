"""Any architecture of timm, by name and without downloaded weights."""

from __future__ import annotations

import difflib
from typing import Any

import timm
import torch
from torch import Tensor

from overproof.catalog.models import TimmParams
from overproof.errors import ShapeError, UnknownPlugin
from overproof.ml.models.base import Network
from overproof.ml.shapes import ImageFacts


class TimmNetwork(Network):
    """A model of timm behind our interface; features are what enters its last layer.

    Args:
        body: a model that `timm.create_model` returned.
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def embed(self, x: Tensor) -> Tensor:
        """(B, C, H, W) normalised images → (B, D) features."""
        body: Any = self.body
        features: Tensor = body.forward_head(body.forward_features(x), pre_logits=True)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """(B, D) features → (B, K) logits."""
        body: Any = self.body
        logits: Tensor = body.get_classifier()(features)
        return logits


def timm_model(params: TimmParams, facts: ImageFacts) -> TimmNetwork:
    """The architecture `params.architecture` for images like `facts`, with random weights.

    Raises:
        UnknownPlugin: timm has no architecture of that name.
        ShapeError: it cannot take images of that size.

    Source: huggingface/pytorch-image-models. Differs: no.
    """
    name = params.architecture
    # Only names that are listed: create_model would fetch what carries a scheme ("hf-hub:").
    known = timm.list_models()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3) or ["resnet18"]
        raise UnknownPlugin(
            f"timm has no architecture {name!r}; did you mean {' or '.join(close)}?"
        )
    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size
    options: dict[str, Any] = {"img_size": facts.size} if fixed else {}
    refusal = f"timm architecture {name} cannot take images of {facts.size[0]} × {facts.size[1]}"
    try:
        body = timm.create_model(
            name, num_classes=facts.classes, in_chans=facts.channels, **options
        )
        network = TimmNetwork(body).eval()
        with torch.no_grad():
            logits = network(torch.zeros(1, facts.channels, *facts.size))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShapeError(f"{refusal}: {reason}") from error
    if tuple(logits.shape) != (1, facts.classes):
        raise ShapeError(f"{refusal}: its output is {tuple(logits.shape)}")
    return network.train()
