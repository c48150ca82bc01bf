"""From the space in which published code stores images back to pixels.

No file says which space it is in. Means and deviations are used only where the code that wrote the
form is known to use them for that data set, or where the user names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.catalog.imagenet import IMAGENET_MEAN, IMAGENET_STD, SUBSETS
from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.formats import zca
from overproof.ml.formats.content import Content, Space, Target, Wishes

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

_IMAGENET: Statistics = (IMAGENET_MEAN, IMAGENET_STD)
# Known to be wrong (it is the mean of the deviations of single images), and what files are in.
_CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_DC: Mapping[str, Statistics] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2861,), (0.3530,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "cifar-10": _CIFAR10,
    "cifar-100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    **dict.fromkeys(("tiny-imagenet", "imagenet-1k", "imagenet-1k-64", *SUBSETS), _IMAGENET),
}

# Whose code → data set → mean and deviation of pixels in [0, 1]. `own` stands for the data set's.
CONVENTIONS: Mapping[str, Mapping[str, Statistics]] = {
    "dc": _DC,
    "mtt": {**_DC, "cifar-100": _CIFAR10},
    "imagenet": dict.fromkeys(_DC.keys() - {"mnist", "fashion-mnist"}, _IMAGENET),
}
OWN = "own"

_LARGEST = 50.0  # of any published set; beyond, the optimisation diverged
_CENTRED = 0.08  # largest mean of whitened images; the darkest set known, MNIST, has 0.13
_MEANS = (-0.5, 1.5)  # of a channel of pixels, over the images of a class


@dataclass(frozen=True)
class Pixels:
    """Images as pixels, and how they came to be.

    Attributes:
        images: (N, C, H, W) float32; not clamped.
        space: in which they were stored.
        mean, std: that were used, None where none were.
    """

    images: Tensor
    space: Space
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def to_pixels(
    content: Content,
    target: Target,
    wishes: Wishes,
    whitening: Whitening | None,
    *,
    what: str,
) -> Pixels:
    """The images of `content` in pixel space.

    Raises:
        InvalidData: the space is not certain, a mean and deviation or a transform are wanting, or
            the result looks like no images. The message says what to name.
    """
    images = content.images
    low, high = (float(bound) for bound in images.aminmax())
    if max(-low, high) > _LARGEST:
        raise InvalidData(f"{what} has values up to {max(-low, high):.3g}; such a set has diverged")
    space = wishes.space or _certain_space(content, what)
    mean = std = None
    if space == "zca":
        if whitening is None:
            raise InvalidData(
                f"{what} is whitened (ZCA): give the transform by --zca FILE, or --zca fit to fit "
                "it to the training images; a file `images_zca_…` beside it is unwhitened already"
            )
        images = zca.undo(whitening, images)
    elif space == "normalised":
        mean, std = statistics(
            target,
            name=wishes.normalisation or content.normalisation,
            mean=wishes.mean,
            std=wishes.std,
            what=f"{what} is normalised",
        )
        shape = (1, -1, 1, 1)
        images = images * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    _check_plausible(images, space, what)
    return Pixels(images, space, mean, std)


def apparent_space(images: Tensor) -> Space | None:
    """The space that the values of (N, C, H, W) images speak for, None where they speak for none.

    Pixels lie in [0, 1], with some overshoot where they were optimised; normalised values spread
    around 0 by about 1; whitened ones around 0 by much less.
    """
    low, high = (float(bound) for bound in images.aminmax())
    mean, std = float(images.mean()), float(images.std())
    if low >= -0.05 and high <= 1.05:
        return "unit"
    if low >= -0.5 and high <= 1.5 and _CENTRED < mean < 0.85 and std < 0.45:
        return "unit"
    if abs(mean) < 0.75 and 0.6 < std < 3:
        return "normalised"
    if abs(mean) < _CENTRED and std <= 0.6 and low < 0:
        return "zca"
    return None


def _certain_space(content: Content, what: str) -> Space:
    seen = apparent_space(content.images)
    expected = content.spaces
    if seen in expected:
        return seen
    if seen is None and len(expected) == 1:
        return expected[0]
    looks = "of no certain space" if seen is None else f"{_WORDS[seen]}"
    raise InvalidData(
        f"{what} should be {' or '.join(_WORDS[space] for space in expected)}, its values look "
        f"{looks}; say which by --space"
    )


_WORDS: Mapping[str, str] = {
    "unit": "pixels in [0, 1] (unit)",
    "normalised": "normalised",
    "zca": "whitened (zca)",
}


def statistics(
    target: Target,
    *,
    name: str | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    what: str,
) -> Statistics:
    """Mean and deviation of each channel, as the user or a convention has them.

    Args:
        target: the data set.
        name: of `CONVENTIONS`, or `own`; None where nobody says.
        mean: of each channel, given by number; goes first.
        std: the deviations to it.
        what: begins the message where nobody knows: "FILE is normalised".

    Raises:
        InvalidData: nobody says, or what is said does not exist or fit.
    """
    channels = target.facts.channels
    if mean is not None or std is not None:
        mean, std = mean or (), std or ()
        if not len(mean) == len(std) == channels or min(std) <= 0:
            raise InvalidData(
                f"--mean and --std need {channels} numbers each, deviations above 0; these are "
                f"{mean} and {std}"
            )
        return mean, std
    if name == OWN:
        return target.facts.mean, target.facts.std
    if name is not None and name not in CONVENTIONS:
        raise InvalidData(f"no normalisation is called {name!r}; known: {known_conventions()}")
    known = CONVENTIONS.get(name or "", {}).get(target.dataset)
    if known is None:
        raise InvalidData(
            f"{what}, and nobody knows by what mean and deviation for {target.dataset}: give "
            f"--normalisation ({known_conventions()}), or --mean and --std"
        )
    return known


def known_conventions() -> str:
    """Their names, for messages and help."""
    return ", ".join([*CONVENTIONS, OWN])


def _check_plausible(images: Tensor, space: Space, what: str) -> None:
    means = [round(mean, 2) for mean in images.mean(dim=(0, 2, 3)).tolist()]
    if not _MEANS[0] <= min(means) <= max(means) <= _MEANS[1]:
        raise InvalidData(
            f"{what}, taken as {space}, has channels of mean {means}; pixels lie around [0, 1], so "
            "another space or normalisation must be meant"
        )
