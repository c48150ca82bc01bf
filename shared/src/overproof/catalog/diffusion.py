"""Parameters of D4M: prototypes in the latent space of a diffusion model, and images from them."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from overproof.catalog.fields import Count
from overproof.core.registry import Params

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class DiffusionParams(Params):
    """Published: Stable Diffusion v1.5 at 512 pixels, strength 0.7, guidance 8, 50 steps.

    `weights`: an absolute path of a folder with a Stable Diffusion pipeline, the same on every
    machine, or the id of one on the Hugging Face hub. `revision`: the commit of a hub's weights,
    40 hex digits, without which an id would name whatever is newest; for a folder the SHA-256 of
    its files, checked if given. `variant` `medoid` takes, for each prototype, the nearest real
    image, in the space of the weights or, without any, of pixels.

    `class_names`: what the classes are called in prompts, in the order of their numbers, with `;`
    between two; None where the catalog of data sets knows. `expand` times the number of prototypes
    are the latents of one step of k-means.
    """

    weights: str | None = None
    revision: str | None = None
    variant: Literal["diffusion", "medoid"] = "diffusion"
    class_names: str | None = None
    resolution: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 512
    expand: Count = 10
    strength: Annotated[float, Field(gt=0, le=1)] = 0.7
    guidance: Annotated[float, Field(ge=1)] = 8.0
    denoising_steps: Annotated[int, Field(ge=2, le=1_000)] = 50
    negative_prompt: str = "cartoon, anime, painting"

    @model_validator(mode="after")
    def _weights_are_pinned(self) -> Self:
        if self.weights is None:
            if self.variant == "diffusion":
                raise ValueError(
                    "weights: name a folder with a Stable Diffusion pipeline, or a hub id with its "
                    "revision; variant: medoid needs none"
                )
        elif PurePath(self.weights).is_absolute():
            if self.revision is not None and not _DIGEST.fullmatch(self.revision):
                raise ValueError("revision: of a folder it is the SHA-256 of its files; leave out")
        elif not _HUB_ID.fullmatch(self.weights):
            raise ValueError(
                f"weights: {self.weights!r} is neither an absolute path nor a hub id (owner/name)"
            )
        elif self.revision is None or not _COMMIT.fullmatch(self.revision):
            raise ValueError("revision: pin the hub's weights by a commit, 40 hex digits")
        return self
