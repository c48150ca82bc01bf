"""The contract of distillation methods, and what they make: a distilled set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from overproof.core.registry import Params
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, InvalidSpec, MalformedArtifact, NonFiniteLoss, ShapeError
from overproof.ml.augment.zca import Whitening
from overproof.ml.datasets.base import Dataset
from overproof.ml.distill.canvas import decode
from overproof.ml.memory import Demand
from overproof.ml.models.base import Normalized, build
from overproof.ml.shapes import ImageFacts, check_images, check_labels

P = TypeVar("P", bound=Params)

_WHITENING_MEAN, _WHITENING_MATRIX = "zca_mean", "zca_matrix"  # entries of a file
_READ_EVERY = 25  # steps between two waits for a GPU


@dataclass(frozen=True)
class DistilledSet:
    """A small training set in the place of a large one.

    Attributes:
        images: (K · n, C, H, W) float32 pixels, class after class. Real pixels lie in [0, 1];
            optimised ones may leave it, and are not clamped: what is outside carries signal.
        labels: (K · n,) int64, n times 0, then n times 1, …
        logits: (K · n, K) float32, whose softmax are the soft labels that networks are trained
            with; None for training with `labels`.
        learning_rate: that networks are to be trained with, found along with the images; None to
            leave it to the protocol.
        whitening: that networks see the images through; None for the normalisation of channels.
            The images themselves are pixels all the same.
        canvas_factor: m; each image is a canvas of m × m images, see `canvas`; 1 for plain ones.
    """

    images: Tensor
    labels: Tensor
    logits: Tensor | None = None
    learning_rate: float | None = None
    canvas_factor: int = 1
    whitening: Whitening | None = None

    @property
    def targets(self) -> Tensor:
        """What networks are trained towards: class indices (N,), or probabilities (N, K)."""
        return self.labels if self.logits is None else self.logits.softmax(dim=1)

    def decoded(self) -> DistilledSet:
        """What networks are trained on: the images on the canvases, those of one side by side."""
        if self.canvas_factor == 1:
            return self
        each = self.canvas_factor**2
        return replace(
            self,
            images=decode(self.images, self.canvas_factor),
            labels=self.labels.repeat_interleave(each),
            logits=None if self.logits is None else self.logits.repeat_interleave(each, dim=0),
            canvas_factor=1,
        )

    def write(self, path: Path) -> None:
        """Write the set to `path` as safetensors; equal sets give equal bytes."""
        tensors = {"images": self.images.contiguous(), "labels": self.labels}
        if self.logits is not None:
            tensors["logits"] = self.logits.contiguous()
        if self.learning_rate is not None:
            tensors["learning_rate"] = torch.tensor(self.learning_rate, dtype=torch.float64)
        if self.canvas_factor != 1:
            tensors["canvas_factor"] = torch.tensor(self.canvas_factor)
        if self.whitening is not None:
            tensors[_WHITENING_MEAN] = self.whitening.mean.contiguous()
            tensors[_WHITENING_MATRIX] = self.whitening.matrix.contiguous()
        save_file(tensors, path)

    @classmethod
    def read(cls, path: Path, facts: ImageFacts) -> DistilledSet:
        """Read what `write` wrote, and check it.

        Raises:
            MalformedArtifact: the file is not a distilled set.
            ShapeError, InvalidData: its images or labels do not fit `facts`.
        """
        try:
            tensors = load_file(path)
            images, labels = tensors["images"], tensors["labels"]
        except (SafetensorError, OSError, KeyError) as error:
            raise MalformedArtifact(f"{path} is not a distilled set ({error})") from None
        check_images(images, facts=facts, what="distilled images")
        try:
            check_labels(labels, count=len(images), classes=facts.classes)
        except ValueError as error:
            raise InvalidData(f"{path}: {error}") from None
        if not bool(images.isfinite().all()):
            raise InvalidData(f"{path} has pixels that are not finite")
        logits = tensors.get("logits")
        if logits is not None and logits.shape != (len(images), facts.classes):
            raise ShapeError(
                f"{path}: soft labels of {len(images)} images and {facts.classes} classes cannot "
                f"be {tuple(logits.shape)}"
            )
        if logits is not None and not bool(logits.isfinite().all()):
            raise InvalidData(f"{path} has soft labels that are not finite")
        learning_rate = float(tensors["learning_rate"]) if "learning_rate" in tensors else None
        if learning_rate is not None and not 0 < learning_rate < math.inf:
            raise InvalidData(f"{path}: a learning rate must be positive, not {learning_rate}")
        return cls(
            images=images,
            labels=labels,
            logits=logits,
            learning_rate=learning_rate,
            canvas_factor=_canvas_factor(tensors, facts, path),
            whitening=_whitening(tensors, facts, path),
        )


def _whitening(tensors: Mapping[str, Tensor], facts: ImageFacts, path: Path) -> Whitening | None:
    mean, matrix = tensors.get(_WHITENING_MEAN), tensors.get(_WHITENING_MATRIX)
    if mean is None and matrix is None:
        return None
    if mean is None or matrix is None:
        raise MalformedArtifact(f"{path} has half of a whitening; distil the set again")
    whitening = Whitening(mean, matrix)
    whitening.check(facts, str(path))
    return whitening


def _canvas_factor(tensors: Mapping[str, Tensor], facts: ImageFacts, path: Path) -> int:
    if "canvas_factor" not in tensors:
        return 1
    tensor = tensors["canvas_factor"]
    if tensor.numel() != 1 or not 1 <= int(tensor) <= min(facts.size):
        raise InvalidData(
            f"{path}: a canvas of {facts.size[0]} × {facts.size[1]} pixels has no factor "
            f"{tensor.tolist()}"
        )
    return int(tensor)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be distilled.

    Attributes:
        dataset: training images; the test images are not looked at.
        network: architecture of the networks that a method matches on, None for methods that use
            none.
        images_per_class: n, at least 1.
        seed: of all random draws.
        device: where to compute.
        experts: files with the trajectories of experts, for methods that follow them.
        teacher: a trained network on the device, in eval mode, for methods that ask one.
        whitening: that networks see images through; None for the normalisation of channels.
        prototypes: file with the prototypes of each class, for methods that begin with them.
        rows_at_once: most images sent through a network at once where that is free to choose;
            bounds memory.
    """

    dataset: Dataset
    network: PluginRef | None
    images_per_class: int
    seed: int
    device: torch.device
    experts: Sequence[Path] = ()
    teacher: Normalized | None = None
    whitening: Whitening | None = None
    prototypes: Path | None = None
    rows_at_once: int = 512

    def build(self, *labels: str | int) -> Normalized:
        """A network on the device, its initial values following from the seed and `labels`.

        Raises:
            InvalidSpec: the method needs a network and none is named.
        """
        if self.network is None:
            raise InvalidSpec(["network: this method matches on a network; name one"], "set")
        made = build(self.network, self.dataset.facts, self.seed, *labels, whitening=self.whitening)
        return made.to(self.device)

    def whitened(self) -> Problem:
        """The same with networks that see images whitened as the training images ask for."""
        return replace(self, whitening=Whitening.fit(self.dataset.train_images, self.device))

    def asked(self) -> Normalized:
        """The teacher.

        Raises:
            InvalidSpec: the method asks a teacher and there is none.
        """
        if self.teacher is None:
            raise InvalidSpec(["teacher: this method asks a teacher; name one"], "set")
        return self.teacher

    def require_images(self) -> None:
        """Make sure that the set is no larger than what it stands for.

        Raises:
            InvalidData: a class has fewer images than are asked for, or none.
        """
        counts = torch.bincount(self.dataset.train_labels, minlength=self.dataset.classes)
        label = int(counts.argmin())
        least = int(counts[label])
        if least < self.images_per_class:
            raise InvalidData(
                f"class {label} has {least} training images, {self.images_per_class} different "
                "ones are asked for; "
                + (f"ask for at most {least} images per class" if least else "add some")
            )


class DistillationMethod(ABC, Generic[P]):
    """A method: construct it, do all steps in order, take the result. A `Resumable`.

    All randomness of step i comes from generators named by the seed, a purpose and i.

    Args:
        params: parameters of the method as in the catalog.
        problem: what is to be distilled.

    Attributes:
        loss: of the last step whose loss was read, None without one.

    Raises:
        InvalidData: a class has fewer images than are asked for.
    """

    def __init__(self, params: P, problem: Problem) -> None:
        problem.require_images()
        self.params = params
        self.problem = problem
        self.loss: float | None = None

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """How many steps there are; 0 for a selection without a loop."""

    @abstractmethod
    def step(self, index: int) -> Mapping[str, float]:
        """Do step `index`; see `Resumable`."""

    @abstractmethod
    def result(self) -> DistilledSet:
        """The distilled set, on the CPU, after the last step."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What the next step needs; copies, finite unless the method diverged."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""

    def demand(self) -> Demand | None:
        """What a step takes at its peak beside what the method holds now; None if not known."""
        return None

    def preview(self) -> Tensor | None:
        """(K · n, C, H, W) pixels of the set as it is between two steps, on any device.

        None of a method whose images are there only at the end.
        """
        return None

    def notes(self) -> Mapping[str, str | int]:
        """How it was computed, where there was a choice; kept beside the set."""
        return {}

    def _read(self, index: int, loss: Tensor, **terms: Tensor) -> Mapping[str, float]:
        """The loss for the progress display, where reading it is cheap or due.

        Args:
            index: of the step.
            loss: () what the step reduces.
            **terms: () parts of the loss and other numbers of the step, shown beside it.

        Raises:
            NonFiniteLoss: one of them is NaN or infinite.
        """
        last = index + 1 == self.total_steps
        if loss.device.type != "cpu" and index % _READ_EVERY and not last:
            return {}
        values = torch.stack([loss, *terms.values()]).tolist()
        scalars = dict(zip(("loss", *terms), values, strict=True))
        self.loss = scalars["loss"]
        for name, value in scalars.items():
            if not math.isfinite(value):
                what = "distillation loss" if name == "loss" else name
                raise NonFiniteLoss(
                    f"the {what} is {value} in step {index}; lower the learning rate"
                )
        return scalars
