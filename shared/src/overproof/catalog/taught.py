"""Parameters of the methods that ask a teacher, and their presets by the size of the images.

What a paper gives for its data sets is None here and is looked up when the method is made: small
images are those of CIFAR, of up to 32 pixels a side, then Tiny ImageNet's of up to 64, then
ImageNet's. Other data sets than those take the row of their size, which is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from overproof.catalog.fields import Count, Positive
from overproof.core.registry import Params

AtLeastZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class PatchParams(Params):
    """Published: the best of 5 crops of each of 300 images; 2 × 2 patches an image of ImageNet.

    `factor`: f, an image is made of f × f patches; None for 1 up to 64 pixels a side, 2 above.
    `candidates`: real images of a class that are looked at. `smallest_crop`: share of the area.
    """

    factor: Count | None = None
    candidates: Count = 300
    crops: Count = 5
    smallest_crop: Share = 0.08


def patch_factor(side: int) -> int:
    """The published factor for images of `side` pixels."""
    return 1 if side <= 64 else 2


class InversionParams(Params):
    """None: as published for the size of the images, see `inversion_preset`.

    Images of `group` classes, one of each, are moved together: their statistics are compared with
    the teacher's by `statistics_weight`, those before its first batch norm `first_weight` times as
    much. What the teacher sees is a crop of at least `smallest_crop` of the area, 1 for none,
    mirrored or not, rolled by up to `jitter` pixels.
    """

    iterations: Count | None = None
    learning_rate: Positive | None = None
    statistics_weight: AtLeastZero | None = None
    first_weight: AtLeastZero = 10.0
    smallest_crop: Share | None = None
    jitter: Annotated[int, Field(ge=0)] | None = None
    group: Count = 100


class CurriculumParams(InversionParams):
    """As SRe2L, but the smallest crop falls on a cosine from the whole image to `smallest_crop`.

    It takes `milestone` of all iterations to do so.
    """

    milestone: Annotated[float, Field(gt=0, le=1)] = 1.0


@dataclass(frozen=True, kw_only=True)
class InversionPreset:
    """What SRe2L chooses by the data set; fields as in `InversionParams`.

    Attributes:
        jitter_back: whether images are rolled in both directions.
    """

    iterations: int
    learning_rate: float
    statistics_weight: float
    smallest_crop: float
    jitter: int
    jitter_back: bool = False


_CIFAR = InversionPreset(
    iterations=1_000, learning_rate=0.25, statistics_weight=0.01, smallest_crop=1.0, jitter=4
)
_TINY = InversionPreset(
    iterations=4_000,
    learning_rate=0.1,
    statistics_weight=1.0,
    smallest_crop=0.08,
    jitter=4,
    jitter_back=True,
)
_IMAGENET = InversionPreset(
    iterations=4_000, learning_rate=0.25, statistics_weight=0.01, smallest_crop=0.08, jitter=32
)
_CURRICULUM_CIFAR = replace(_CIFAR, smallest_crop=0.08)
_CURRICULUM_TINY = InversionPreset(
    iterations=4_000,
    learning_rate=0.4,
    statistics_weight=0.05,
    smallest_crop=0.08,
    jitter=4,
)


def inversion_preset(side: int, *, curriculum: bool) -> InversionPreset:
    """The published settings for images of `side` pixels.

    Source: VILA-Lab/SRe2L, recover scripts of SRe2L and CDA. Differs: CDA has none for CIFAR; ours
    are SRe2L's with crops.
    """
    if side <= 32:
        return _CURRICULUM_CIFAR if curriculum else _CIFAR
    if side <= 64:
        return _CURRICULUM_TINY if curriculum else _TINY
    return _IMAGENET
