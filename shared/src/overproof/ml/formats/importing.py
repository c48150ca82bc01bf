"""From a published file to a distilled set of ours, with a report of what was seen."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import torch

from overproof.errors import InvalidData
from overproof.ml.augment.zca import Whitening
from overproof.ml.datasets.base import Dataset
from overproof.ml.distill.base import DistilledSet
from overproof.ml.formats import labels, spaces, zca
from overproof.ml.formats.content import Content, Source, Target, Wishes
from overproof.ml.formats.fkd import import_labels
from overproof.ml.formats.forms import form_of

FIT = "fit"  # in the place of a file with a ZCA transform


def import_set(
    path: Path,
    into: Path,
    target: Target,
    wishes: Wishes,
    dataset: Dataset | None = None,
    *,
    labels_into: Path | None = None,
) -> dict[str, Any]:
    """Write the set at `path` to `into` as `DistilledSet.write` does.

    Args:
        path: file or folder in one of `forms.FORMS`.
        into: the file to write; replaced if it exists.
        target: the data set that it was distilled from.
        wishes: what the path does not say.
        dataset: training images, for a transform that is to be fitted; None elsewhere.
        labels_into: the file to write soft labels of views to, where `wishes.fkd` names some.

    Returns:
        What was seen, as JSON: `form`, `dataset`, `images` (stored), `training_images` (decoded),
        `images_per_class` (stored), `classes`, `shape`, `labels`, `space`, `mean`, `std`, `range`
        (as stored), `pixels` (their range), `channel_means`, `canvas_factor`, `learning_rate`,
        `source` (name and SHA-256), `notes`.

    Raises:
        InvalidData: the form is unknown, the file damaged or hostile, the set does not fit the data
            set, or something is uncertain that only the user can say.
    """
    source = Source(path)
    form = form_of(source, wishes.format)
    content = form.read(source, target, wishes)
    _check_shape(content, target, path)
    found = labels.read(
        content.labels,
        images=len(content.images),
        classes=target.facts.classes,
        what=str(path),
    )
    order = labels.class_order(found.classes, target.facts.classes, str(path))
    whitening = _whitening(wishes, target, dataset)
    pixels = spaces.to_pixels(content, target, wishes, whitening, what=str(path))
    rate = wishes.learning_rate if content.learning_rate is None else content.learning_rate
    if rate is not None and not 0 < rate < math.inf:
        raise InvalidData(f"{path}: a learning rate must be positive, not {rate}")
    distilled = DistilledSet(
        images=pixels.images[order].contiguous(),
        labels=found.classes[order],
        logits=None if found.logits is None else found.logits[order].contiguous(),
        learning_rate=rate,
        canvas_factor=_canvas(content, wishes, target, path),
        whitening=whitening if pixels.space == "zca" else content.whitening,
    )
    distilled.decoded()  # canvases that cannot be decoded are refused here, not by a worker
    distilled.write(into)
    DistilledSet.read(into, target.facts)
    notes = [*content.notes]
    if wishes.fkd is not None and labels_into is not None:
        epochs = _import_labels(content, order, target, wishes.fkd, labels_into, path)
        notes.append(f"soft labels of {epochs} epochs of views, for protocols that replay them")
    if distilled.whitening is not None:
        notes.append("the whitening is kept: networks see images through it, and attacks too")
    if found.agreement < 1:
        notes.append(
            f"soft labels name the class of the image in {found.agreement:.1%} of all cases"
        )
    return {
        "form": form.name,
        "dataset": target.dataset,
        "images": len(distilled.images),
        "training_images": len(distilled.images) * distilled.canvas_factor**2,
        "images_per_class": len(distilled.images) // target.facts.classes,
        "classes": target.facts.classes,
        "shape": list(distilled.images.shape[1:]),
        "labels": found.kind,
        "space": pixels.space,
        "mean": pixels.mean,
        "std": pixels.std,
        "range": [round(float(bound), 4) for bound in content.images.aminmax()],
        "pixels": [round(float(bound), 4) for bound in distilled.images.aminmax()],
        "channel_means": [round(mean, 4) for mean in distilled.images.mean(dim=(0, 2, 3)).tolist()],
        "canvas_factor": distilled.canvas_factor,
        "learning_rate": rate,
        "source": {"name": path.name, "sha256": _digest(path)},
        "notes": notes,
    }


def _import_labels(
    content: Content, order: torch.Tensor, target: Target, fkd: Path, into: Path, path: Path
) -> int:
    if content.listed is None:
        raise InvalidData(f"{path} holds no image files, which soft labels of views belong to")
    place = order.argsort()  # of each stored image in the set
    return import_labels(
        fkd,
        into,
        rows=place[content.listed],
        size=target.facts.size,
        classes=target.facts.classes,
    )


def _check_shape(content: Content, target: Target, path: Path) -> None:
    expected = (target.facts.channels, *target.facts.size)
    found = tuple(content.images.shape[1:])
    if found != expected:
        raise InvalidData(
            f"{path} has images of {found} (C, H, W), {target.dataset} of {expected}; name another "
            "data set by --dataset, or scale image files by --size"
        )


def _canvas(content: Content, wishes: Wishes, target: Target, path: Path) -> int:
    factor = wishes.canvas or content.canvas
    if factor is None or not 1 <= factor <= min(target.facts.size):
        raise InvalidData(f"{path}: no canvas of {target.facts.size} pixels has factor {factor}")
    return factor


def _whitening(wishes: Wishes, target: Target, dataset: Dataset | None) -> Whitening | None:
    if wishes.zca is None:
        return None
    if wishes.zca != FIT:
        return zca.read(Path(wishes.zca), target.facts)
    if dataset is None:
        raise InvalidData("--zca fit needs the training images; add the data set first")
    return Whitening.fit(dataset.train_images, torch.device("cpu"))


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of the files in a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for each in sorted(each for each in path.rglob("*") if each.is_file()):
        with each.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        # Names of files need not be text.
        whole.update(os.fsencode(each.relative_to(path)) + f"\0{digest}\n".encode())
    return whole.hexdigest()
