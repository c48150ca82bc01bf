"""Soft labels of SRe2L and D4M (FKD): what a teacher said of each view of each batch.

`epoch_{e}/batch_{b}.tar`, of torch: `[coords (B, 4), mirrored (B,), partners (B,) or None, share or
None, box or None, logits (B, K)]`. A view is the crop at (top / H, left / W, height / H, width /
W), mirrored or not, then mixed with another row of its batch: the box [x1, y1, x2, y2] of it
(CutMix; x counts rows), or by the share (mixup). Which image a row is, no file says: it is the
place of the row in a shuffled list of the sorted files. The shuffle of epoch e is the (2 e)-th
permutation of a generator with the seed 42, since a sampler draws one more each epoch and throws it
away.

Source: VILA-Lab/SRe2L, relabel/generate_soft_label.py, relabel/utils_fkd.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.augment.mixing import Mixes
from overproof.ml.augment.views import Views
from overproof.ml.formats import torch_files
from overproof.ml.formats.content import as_tensor, number_of
from overproof.ml.train.soft_labels import EpochViews, write_labels

SEED = 42  # of the published code
_MAX_EPOCHS = 10_000


def import_labels(
    folder: Path, into: Path, *, rows: Tensor, size: tuple[int, int], classes: int
) -> int:
    """Write the labels in `folder` to `into`, as `soft_labels.write_labels` does.

    Args:
        folder: with folders `epoch_0`, …
        into: the file to write.
        rows: (N,) int64, for each image in the sorted list of files its place in the set.
        size: (H, W) of the images.
        classes: K.

    Returns:
        Number of epochs.

    Raises:
        InvalidData: epochs or batches are missing, the batches do not add up to N, or one holds
            something else.
    """
    epochs = [folder / f"epoch_{number}" for number in _numbered(folder, r"epoch_(\d+)")]
    stream = torch.Generator().manual_seed(SEED)
    drawn, logits = [], []
    for epoch in epochs:
        order = rows[torch.randperm(len(rows), generator=stream)]
        torch.randperm(len(rows), generator=stream)
        views, of_epoch = _read_epoch(epoch, order, size, classes)
        drawn.append(views)
        logits.append(of_epoch)
    write_labels(drawn, torch.stack(logits), into)
    return len(epochs)


def _read_epoch(
    folder: Path, order: Tensor, size: tuple[int, int], classes: int
) -> tuple[EpochViews, Tensor]:
    """The views of all images, by their place in the set, and the (N, K) logits."""
    count = len(order)
    boxes, mixed = (
        torch.zeros(count, 4, dtype=torch.int64),
        torch.zeros(count, 4, dtype=torch.int64),
    )
    mirrored = torch.zeros(count, dtype=torch.bool)
    partners, shares = torch.arange(count), torch.ones(count)
    logits = torch.zeros(count, classes, dtype=torch.float16)
    scale = torch.tensor([*size, *size])
    done = 0
    for path, batch in _batches(folder):
        coords, flips, mix, share, box, said = batch
        here = order[done : done + len(coords)]
        if done + len(coords) > count:
            raise InvalidData(f"{folder} has labels of more than {count} images")
        if said.shape != (len(coords), classes):
            raise InvalidData(f"{path} has labels {tuple(said.shape)} for {classes} classes")
        boxes[here] = (coords * scale).round().long()
        mirrored[here] = flips
        logits[here] = said.half()
        if mix is not None:
            partners[here] = here[mix]
            shares[here] = 1.0 if box is not None else share
        if mix is not None and box is not None:
            top, left, bottom, right = box
            mixed[here] = torch.tensor([top, left, bottom - top, right - left])
        done += len(coords)
    if done != count:
        raise InvalidData(f"{folder} has labels of {done} images, the set has {count}")
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    if int(low.min()) < 0 or bool((high > torch.tensor(size)).any()) or int(boxes[:, 2:].min()) < 1:
        raise InvalidData(f"{folder} has crops that leave images of {size} pixels")
    if not bool(logits.isfinite().all()):
        raise InvalidData(f"{folder} has labels that are not finite")
    f = torch.zeros(count, 2, 1, dtype=torch.int64)  # one tile, in its place
    return EpochViews(
        order=order,
        views=Views(boxes=boxes, mirrored=mirrored, tiles=f),
        mixes=Mixes(partners=partners, boxes=mixed, shares=shares),
    ), logits


_Batch = tuple[Tensor, Tensor, Tensor | None, float, list[int] | None, Tensor]


def _batches(folder: Path) -> Iterator[tuple[Path, _Batch]]:
    for number in _numbered(folder, r"batch_(\d+)\.tar"):
        path = folder / f"batch_{number}.tar"
        yield path, _batch(torch_files.load(path), path)


def _batch(value: Any, path: Path) -> _Batch:
    if not isinstance(value, list | tuple) or len(value) != 6:
        raise InvalidData(f"{path} holds no batch of coords, flips, mix and labels")
    coords, flips = as_tensor(value[0], str(path)), as_tensor(value[1], str(path))
    logits = as_tensor(value[5], str(path))
    count = len(coords) if coords.ndim else 0
    if coords.shape != (count, 4) or flips.shape != (count,) or logits.shape[:1] != (count,):
        raise InvalidData(f"{path} has coords, flips and labels of different numbers")
    mix = None if value[2] is None else as_tensor(value[2], str(path)).long()
    if mix is not None and sorted(mix.tolist()) != list(range(count)):
        raise InvalidData(f"{path} mixes rows that it has not")
    share = 1.0 if value[3] is None else number_of(value[3], str(path))
    if not 0 <= share <= 1:
        raise InvalidData(f"{path} mixes by a share of {share}")
    box = None
    if value[4] is not None:
        box = [int(number_of(each, str(path))) for each in value[4]]
        if len(box) != 4 or not (0 <= box[0] <= box[2] and 0 <= box[1] <= box[3]):
            raise InvalidData(f"{path} mixes by an impossible box {box}")
    return coords.double(), flips.bool(), mix, share, box, logits


def _numbered(folder: Path, pattern: str) -> list[int]:
    """The numbers in the names of a folder's entries: 0, 1, 2, … without a gap."""
    if not folder.is_dir():
        raise InvalidData(f"{folder} is no folder of soft labels (epoch_0/batch_0.tar, …)")
    names = [re.fullmatch(pattern, entry.name) for entry in folder.iterdir()]
    numbers = sorted(int(match[1]) for match in names if match)
    if not numbers or numbers != list(range(len(numbers))) or len(numbers) > _MAX_EPOCHS:
        raise InvalidData(f"{folder} has not each of {pattern} from 0 on: {numbers[:5]}")
    return numbers
