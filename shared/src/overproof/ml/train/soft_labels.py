"""Soft labels of a teacher: views of a small set, drawn and labelled once, replayed many times.

What was drawn is kept for each image, not for each batch: a reader can show any images of an epoch
again, in any order, and each comes with the label of exactly what is shown.

Source: Shen & Xing, arXiv:2112.01528 (FKD); VILA-Lab/SRe2L, relabel/generate_soft_label.py.
Differs: one file instead of one a batch, which names its images; crops in whole pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from overproof.errors import InvalidSpec, MalformedArtifact, NonFiniteLoss, ShapeError
from overproof.ml.augment import mixing, views
from overproof.ml.augment.mixing import Mixes, Mixing
from overproof.ml.augment.views import Views
from overproof.ml.models.base import Normalized
from overproof.ml.seeding import generator
from overproof.ml.train.evaluation import pixels_of

_LOGITS = "logits"
# Name in the file → (dtype, values of an image).
_RECORD = {
    "order": (torch.int32, 0),
    "boxes": (torch.int16, 4),
    "mirrored": (torch.bool, 0),
    "partners": (torch.int32, 0),
    "mix_boxes": (torch.int16, 4),
    "shares": (torch.float32, 0),
}
_TILES = "tiles"


@dataclass(frozen=True, kw_only=True)
class ViewPlan:
    """What views of images are drawn.

    Attributes:
        epochs: how often each image is seen.
        batch_size: images that are mixed among each other.
        smallest_crop: share of the area of the smallest crop, 1 for none.
        shift: pixels by which images move at most, where there are no crops.
        mirrors: whether half of the views are mirrored.
        mixing: of the images of a batch.
        tiles: f, images are seen as f × f tiles in random order.
        seed: of all draws.
    """

    epochs: int
    batch_size: int
    smallest_crop: float
    shift: int
    mirrors: bool
    mixing: Mixing
    tiles: int
    seed: int

    def draw(self, epoch: int, count: int, size: tuple[int, int]) -> EpochViews:
        """The views of `count` images of (H, W) pixels in one epoch."""
        stream = generator(self.seed, "views", epoch)
        order = torch.randperm(count, generator=stream)
        if self.smallest_crop < 1:
            boxes = views.crop_boxes(count, size, self.smallest_crop, stream)
        else:
            boxes = views.shift_boxes(count, size, self.shift, stream)
        mirrored = torch.rand(count, generator=stream) < (0.5 if self.mirrors else 0.0)
        tiles = views.tile_orders(count, self.tiles, stream)
        parts = [
            mixing.draw(self.mixing, batch, size, stream)
            for batch in torch.split(order, self.batch_size)
        ]
        place = order.argsort()  # of each image among those in order
        mixes = Mixes(
            partners=torch.cat([part.partners for part in parts]),
            boxes=torch.cat([part.boxes for part in parts]),
            shares=torch.cat([part.shares for part in parts]),
        ).of(place)
        return EpochViews(
            order=order, views=Views(boxes=boxes, mirrored=mirrored, tiles=tiles), mixes=mixes
        )


@dataclass(frozen=True, kw_only=True)
class EpochViews:
    """How each of N images is seen in one epoch.

    Attributes:
        order: (N,) int64, in which they were drawn; batches of the plan's size mix among each
            other.
        views, mixes: of each image, by its number.
    """

    order: Tensor
    views: Views
    mixes: Mixes

    def show(self, images: Tensor, rows: Tensor) -> Tensor:
        """Some of the images as they are seen.

        Args:
            images: (N, C, H, W) all of them, uint8 or float32 pixels, any device.
            rows: (B,) int64 numbers, in any order, on the CPU.

        Returns:
            (B, C, H, W) float32 pixels on the device of `images`.
        """
        mixes = self.mixes.of(rows)
        seen = self._seen(images, rows)
        if bool((mixes.partners == rows).all()):
            return seen
        return mixing.apply(seen, self._seen(images, mixes.partners), mixes)

    def _seen(self, images: Tensor, rows: Tensor) -> Tensor:
        return views.apply(pixels_of(images[rows.to(images.device)]), self.views.of(rows))


def write_labels(drawn: Sequence[EpochViews], logits: Tensor, path: Path) -> None:
    """Write views and labels as safetensors; equal ones give equal bytes.

    Args:
        drawn: of each epoch.
        logits: (epochs, N, K) float16.
        path: the file; replaced if it exists.
    """
    columns = {
        "order": [each.order for each in drawn],
        "boxes": [each.views.boxes for each in drawn],
        "mirrored": [each.views.mirrored for each in drawn],
        "partners": [each.mixes.partners for each in drawn],
        "mix_boxes": [each.mixes.boxes for each in drawn],
        "shares": [each.mixes.shares for each in drawn],
    }
    tensors = {name: torch.stack(values).to(_RECORD[name][0]) for name, values in columns.items()}
    tensors[_TILES] = torch.stack([each.views.tiles for each in drawn]).to(torch.int16)
    save_file(tensors | {_LOGITS: logits.contiguous()}, path)


class LabelMaking:
    """A teacher labels views of a set; a `Resumable` with one step an epoch.

    All labels are held in memory, 2 · epochs · N · K bytes.

    Args:
        teacher: on `device`; its mode is set.
        images: (N, C, H, W), uint8 or float32 pixels.
        plan: what is drawn.
        teacher_mode: `train` lets the statistics of each batch into the labels.
        device: where to compute.
        rows_at_once: images in one forward pass; bounds memory. In mode `train` the plan's batches
            go through whole.

    Attributes:
        logits: (epochs, N, K) float16 on the CPU; zeros where still to come.

    Raises:
        ShapeError: there are no images.
    """

    def __init__(
        self,
        teacher: Normalized,
        images: Tensor,
        plan: ViewPlan,
        *,
        teacher_mode: Literal["eval", "train"],
        device: torch.device,
        rows_at_once: int,
    ) -> None:
        if not len(images):
            raise ShapeError("0 images cannot be labelled")
        self._teacher = teacher.train(teacher_mode == "train")
        self._images = images.to(device)
        self._plan = plan
        self._rows_at_once = plan.batch_size if teacher_mode == "train" else rows_at_once
        self._size = (images.shape[2], images.shape[3])
        self._done = 0
        self.logits = torch.zeros(plan.epochs, len(images), teacher.classes, dtype=torch.float16)

    @property
    def total_steps(self) -> int:
        """Number of epochs."""
        return self._plan.epochs

    @torch.no_grad()
    def step(self, index: int) -> Mapping[str, float]:
        """Label all images as they are seen in epoch `index`.

        Raises:
            NonFiniteLoss: a logit is not finite or too large for 16 bits.
        """
        epoch = self._plan.draw(index, len(self._images), self._size)
        for rows in torch.split(epoch.order, self._rows_at_once):
            shown = epoch.show(self._images, rows)
            self.logits[index, rows] = self._teacher(shown).half().cpu()
        self._done = index + 1
        if not bool(self.logits[index].isfinite().all()):
            raise NonFiniteLoss(
                f"the teacher's logits are not finite in epoch {index}; train it at a lower "
                "learning rate"
            )
        return {}

    def write(self, path: Path) -> None:
        """Write views and labels as safetensors; equal labels give equal bytes."""
        drawn = [
            self._plan.draw(index, len(self._images), self._size) for index in range(self._done)
        ]
        write_labels(drawn, self.logits[: self._done], path)

    def state(self) -> dict[str, Tensor]:
        """The labels so far."""
        return {_LOGITS: self.logits[: self._done].clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        kept = state[_LOGITS]
        self._done = len(kept)
        self.logits[: self._done] = kept


class SoftLabels:
    """Views and labels in a file, of which an epoch at a time is read by memory map.

    Args:
        path: what `LabelMaking.write` wrote.
        images: N, of the set that the labels are of.
        classes: K.
        epochs: that are wanted.

    Raises:
        MalformedArtifact: the file is missing, truncated or holds no soft labels.
        ShapeError: they are of another number of images or classes.
        InvalidSpec: there are fewer epochs.
    """

    def __init__(self, path: Path, *, images: int, classes: int, epochs: int) -> None:
        self._slices = _opened(path)
        made, count, known = self._slices[_LOGITS].get_shape()
        if (count, known) != (images, classes):
            raise ShapeError(
                f"{path} has soft labels of {count} images and {known} classes, the set has "
                f"{images} and {classes}; label this set"
            )
        if made < epochs:
            raise InvalidSpec(
                [f"epochs: {path} has soft labels for {made} epochs, {epochs} are asked for"],
                "protocol",
            )
        self.images = images

    def epoch(self, index: int) -> EpochViews:
        """How each image is seen in epoch `index`."""
        record = {name: self._read(name, index) for name in _RECORD}
        return EpochViews(
            order=record["order"].long(),
            views=Views(
                boxes=record["boxes"].long(),
                mirrored=record["mirrored"],
                tiles=self._read(_TILES, index).long(),
            ),
            mixes=Mixes(
                partners=record["partners"].long(),
                boxes=record["mix_boxes"].long(),
                shares=record["shares"],
            ),
        )

    def logits(self, index: int) -> Tensor:
        """(N, K) float32, what the teacher said of each image as it is seen in epoch `index`."""
        return self._read(_LOGITS, index).float()

    def replay(
        self, images: Tensor, index: int, *, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch `index` in the order in which it was drawn.

        Args:
            images: (N, C, H, W), uint8 or float32 pixels, on the device of the training.
            index: of the epoch.
            batch_size: images at once.

        Yields:
            (B, C, H, W) float32 pixels and (B, K) float32 logits on that device.
        """
        epoch, logits = self.epoch(index), self.logits(index)
        for rows in torch.split(epoch.order, batch_size):
            yield epoch.show(images, rows), logits[rows].to(images.device)

    def _read(self, name: str, index: int) -> Tensor:
        values: Tensor = self._slices[name][index]
        return values


def _opened(path: Path) -> dict[str, Any]:
    try:
        file: Any = safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in (*_RECORD, _TILES, _LOGITS)}
    except (SafetensorError, OSError) as error:
        raise MalformedArtifact(
            f"{path} holds no soft labels ({error}); label the set again"
        ) from None
    shape = slices[_LOGITS].get_shape()
    fits = len(shape) == 3 and all(
        slices[name].get_shape() == [*shape[:2], *([width] if width else [])]
        for name, (_, width) in _RECORD.items()
    )
    if not fits or slices[_TILES].get_shape()[:3] != [*shape[:2], 2]:
        raise MalformedArtifact(f"{path} has soft labels {shape} and views of others; label again")
    return slices
