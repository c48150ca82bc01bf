"""Labels as published code stores them: classes, one-hot rows, probabilities or logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.formats.content import as_tensor

LabelKind = Literal["classes", "one-hot", "probabilities", "logits"]

_TOLERANCE = 1e-3  # by which rows of probabilities stored in 16 bits miss 1
_LEAST = 1e-30  # stands for probability 0, whose logarithm does not exist


@dataclass(frozen=True)
class Labels:
    """Labels of N images.

    Attributes:
        classes: (N,) int64.
        logits: (N, K) float32, whose softmax are the soft labels; None for hard ones.
        kind: how they were stored.
        agreement: share of soft labels whose largest entry is the class; 1 for hard ones.
    """

    classes: Tensor
    logits: Tensor | None
    kind: LabelKind
    agreement: float = 1.0


def read(value: Any, *, images: int, classes: int, what: str) -> Labels:
    """The labels in a stored value.

    Soft labels say nothing certain of the class, so images must then lie class after class, as all
    published code stores them.

    Args:
        value: integers or floats, (N,), (N, 1) or (N, K); a list of integers.
        images: N.
        classes: K, of the data set.
        what: the file, for messages.

    Raises:
        InvalidData: another number of labels or of classes, an impossible class, or soft labels
            that contradict the order of the images.
    """
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        if any(abs(item) >= 2**63 for item in value):
            raise InvalidData(f"{what} has classes that are no class of {classes}")
        value = torch.tensor(value)
    labels = as_tensor(value, f"{what}, labels")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if not labels.is_floating_point():
        labels = labels.long()
    elif labels.dtype is not torch.float64:
        labels = labels.float()  # types of 8 bits can be neither compared nor tested
    if labels.shape[:1] != (images,) or labels.ndim > 2:
        raise InvalidData(f"{what} has {images} images, and labels {tuple(labels.shape)}")
    if not bool(labels.isfinite().all() if labels.is_floating_point() else True):
        raise InvalidData(f"{what} has labels that are not finite")
    if labels.ndim == 1:
        return Labels(_hard(labels, classes, what), None, "classes")
    if labels.shape[1] != classes:
        raise InvalidData(f"{what} has labels of {labels.shape[1]} classes, not of {classes}")
    return _soft(labels.float(), what)


def class_order(labels: Tensor, classes: int, what: str) -> Tensor:
    """Rows in the order of their classes, those of a class as they came.

    Raises:
        InvalidData: the classes have different numbers of images.
    """
    counts = torch.bincount(labels, minlength=classes)
    least, most = int(counts.min()), int(counts.max())
    if least != most:
        raise InvalidData(
            f"{what} has {least} images of class {int(counts.argmin())} and {most} of class "
            f"{int(counts.argmax())}; a distilled set has as many of each of {classes} classes"
        )
    return labels.argsort(stable=True)


def _hard(labels: Tensor, classes: int, what: str) -> Tensor:
    whole = labels.long()
    if not bool((whole == labels).all()):
        raise InvalidData(f"{what} has classes that are no whole numbers")
    low, high = int(whole.min()), int(whole.max())
    if low < 0 or high >= classes:
        raise InvalidData(f"{what} has classes {low} … {high}; the data set has {classes}")
    return whole


def _soft(rows: Tensor, what: str) -> Labels:
    count, classes = rows.shape
    if bool(((rows == 0) | (rows == 1)).all() and (rows.sum(dim=1) == 1).all()):
        return Labels(rows.argmax(dim=1), None, "one-hot")
    sums_to_one = bool(((rows.sum(dim=1) - 1).abs() < _TOLERANCE).all())
    is_probability = sums_to_one and bool((rows >= 0).all())
    logits = rows.clamp(min=_LEAST).log() if is_probability else rows
    if count % classes:
        raise InvalidData(f"{what} has {count} images, which is no multiple of {classes} classes")
    ordered = torch.arange(classes).repeat_interleave(count // classes)
    agreement = float((rows.argmax(dim=1) == ordered).float().mean())
    if agreement <= 0.5:  # of two classes, a wrong order has half of them right
        raise InvalidData(
            f"{what} has soft labels of which {agreement:.0%} name the class that the place of the "
            "image says; order the images class after class"
        )
    return Labels(ordered, logits, "probabilities" if is_probability else "logits", agreement)
