"""What a published file holds, before it is brought to pixels and checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.formats import torch_files
from overproof.ml.shapes import ImageFacts

Space = Literal["unit", "normalised", "zca"]

_TORCH_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".tar", ".bin")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The data set that a set was distilled from: its name, and what its images must be."""

    dataset: str
    facts: ImageFacts


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user said besides the path; None where the file is to say it.

    Attributes:
        format: name of the form.
        item: which of several sets in a file, counted from 0 or from the end.
        space: of the stored images.
        normalisation: whose mean and deviation they are in, see `spaces.CONVENTIONS`.
        mean, std: of each channel, given by number.
        zca: file with the whitening transform, or `fit`.
        canvas: factor m of canvases, 1 for plain images.
        labels: file of the labels, where it does not lie beside the images under its usual name.
        size: side in pixels to which image files are scaled.
        learning_rate: that the method found, where the file does not hold it.
        fkd: folder of the soft labels of views of the images.
    """

    format: str | None = None
    item: int | None = None
    space: Space | None = None
    normalisation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    zca: str | None = None
    canvas: int | None = None
    labels: Path | None = None
    size: int | None = None
    learning_rate: float | None = None
    fkd: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a published file holds.

    Attributes:
        images: (N, C, H, W) floats in `space`.
        labels: as stored; see `labels.read`.
        spaces: those that the form is known to come in, most likely first.
        normalisation: whose mean and deviation the code that writes the form uses, None where it
            does not say.
        canvas: factor m of the form's canvases; None where only the user can know.
        learning_rate: that came along, None without.
        whitening: that came along, for networks that see the images through it; the images are
            not whitened themselves. None without.
        listed: (N,) int64, for each file in the order of their paths the image that it is; None
            where images are no files.
        notes: what the user should know, one line each.
    """

    images: Tensor
    labels: Any
    spaces: tuple[Space, ...]
    normalisation: str | None = None
    canvas: int | None = 1
    learning_rate: float | None = None
    whitening: Whitening | None = None
    listed: Tensor | None = None
    notes: tuple[str, ...] = field(default=())


class Source:
    """A path, and what lies there, read once and only when a form asks.

    Args:
        path: file or folder.

    Raises:
        InvalidData: there is nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise InvalidData(f"{path} does not exist")
        self.is_folder = path.is_dir()

    @cached_property
    def value(self) -> Any:
        """The value in a file of torch or in a pickle; None for files of other kinds.

        Raises:
            InvalidData: see `torch_files.load`.
        """
        if self.is_folder or self.path.suffix.lower() not in _TORCH_SUFFIXES:
            return None
        if self.path.suffix.lower() == ".tar" and not self._is_torch:
            return None
        return torch_files.load(self.path)

    @property
    def _is_torch(self) -> bool:
        # Some save tensors as `.tar`; archives of images end so too.
        head = torch_files.read_head(self.path)
        return head.startswith((b"PK", b"\x80"))

    def names(self) -> set[str]:
        """Names of the files and folders in a folder; of none in a file."""
        return {entry.name for entry in self.path.iterdir()} if self.is_folder else set()


@dataclass(frozen=True, kw_only=True)
class Form:
    """A published form of distilled sets.

    Attributes:
        name: what users call it.
        summary: what it is, for lists.
        recognises: whether a source looks like one; reads no more than it must.
        read: its content.
    """

    name: str
    summary: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source, Target, Wishes], Content]


def as_images(value: Any, what: str) -> Tensor:
    """(N, C, H, W) float32 images of a stored value.

    Raises:
        InvalidData: it is no such array, or holds what is not finite.
    """
    tensor = as_tensor(value, what)
    if tensor.ndim != 4 or not len(tensor):
        raise InvalidData(f"{what} has no images (N, C, H, W), but {tuple(tensor.shape)}")
    images = tensor.float()
    if not bool(images.isfinite().all()):
        raise InvalidData(f"{what} holds NaN or infinity; the run that wrote it diverged")
    return images.contiguous()


def as_tensor(value: Any, what: str) -> Tensor:
    """A dense tensor on the CPU of a stored value.

    Raises:
        InvalidData: it is none, or claims more numbers than are read.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))
    if not isinstance(value, Tensor):
        raise InvalidData(f"{what} holds no tensor, but a {type(value).__name__}")
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise InvalidData(f"{what} holds a sparse, quantised or empty tensor; save it dense")
    if value.is_complex():
        raise InvalidData(f"{what} holds complex numbers; no form has them")
    if value.numel() * 8 > 2**33:
        raise InvalidData(f"{what} claims {value.numel()} numbers; that is no distilled set")
    return value.detach()


def is_images(value: Any) -> bool:
    """Whether a stored value could be images."""
    return isinstance(value, Tensor | np.ndarray) and value.ndim == 4


def pair_of(value: Any, what: str) -> tuple[Tensor, Any]:
    """Images and labels of a stored pair.

    Raises:
        InvalidData: it is none.
    """
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise InvalidData(f"{what} holds no pair of images and labels")
    return as_images(value[0], what), value[1]


def number_of(value: Any, what: str) -> float:
    """A number that was stored as such or as a tensor of one."""
    if isinstance(value, Tensor | np.ndarray):
        if math.prod(value.shape) != 1:
            raise InvalidData(f"{what} is no single number, but {tuple(value.shape)}")
    elif not isinstance(value, int | float):
        raise InvalidData(f"{what} is no number, but a {type(value).__name__}")
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidData(f"{what} is no finite number")
    return number
