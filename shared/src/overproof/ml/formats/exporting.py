"""Distilled sets of ours in the forms that other evaluators read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from overproof.errors import InvalidData, InvalidSpec
from overproof.ml.distill.base import DistilledSet
from overproof.ml.formats.content import Target
from overproof.ml.formats.spaces import CONVENTIONS, OWN, Statistics, known_conventions


def export_set(
    distilled: DistilledSet, into: Path, target: Target, form: str, normalisation: str
) -> dict[str, Any]:
    """Write a set in another form.

    Args:
        distilled: any set; its pixels may leave [0, 1].
        into: file or folder to make; must not exist.
        target: the data set that it was distilled from.
        form: one of `EXPORTS`.
        normalisation: of `spaces.CONVENTIONS`, or `own`; for forms with normalised images.

    Returns:
        As JSON: `form`, `path`, `images`, and what was used or lost.

    Raises:
        InvalidData: `into` exists, or the form cannot hold the set.
        InvalidSpec: the form or the normalisation is unknown.
    """
    if form not in EXPORTS:
        raise InvalidSpec([f"no form is called {form!r}; known: {', '.join(EXPORTS)}"], "--format")
    if into.exists():
        raise InvalidData(f"{into} exists; name another place")
    used = _statistics(target, normalisation) if form in NORMALISED else None
    mean, std = used or (target.facts.mean, target.facts.std)
    notes = EXPORTS[form](distilled, into, mean, std)
    return {
        "form": form,
        "path": str(into),
        "images": len(distilled.images),
        "mean": used and list(mean),
        "std": used and list(std),
        "notes": notes,
    }


Numbers = tuple[float, ...]


def _dc(distilled: DistilledSet, into: Path, mean: Numbers, std: Numbers) -> list[str]:
    """The dict of DC with one set; hard labels, decoded canvases."""
    plain = distilled.decoded()
    pair = [_normalised(plain.images, mean, std), plain.labels]
    torch.save({"data": [pair], "accs_all_exps": {}}, into)
    return _lost(distilled, "canvases", "soft labels", "learning rate", "whitening")


def _mtt(distilled: DistilledSet, into: Path, mean: Numbers, std: Numbers) -> list[str]:
    """The files of MTT, and of DATM where there are soft labels or a learning rate.

    Images that networks see through a whitening are whitened, and the transform lies beside them.
    """
    plain = distilled.decoded()
    into.mkdir(parents=True)
    images = _normalised(plain.images, mean, std)
    if plain.whitening is not None:
        white = (plain.images - plain.whitening.mean).flatten(1) @ plain.whitening.matrix
        images = white.view_as(plain.images)
        transform = {"mean": plain.whitening.mean.flatten(), "matrix": plain.whitening.matrix}
        save_file(transform, into / "zca.safetensors")
    torch.save(images, into / "images_best.pt")
    torch.save(plain.labels if plain.logits is None else plain.logits, into / "labels_best.pt")
    if plain.learning_rate is not None:
        rate = torch.tensor(plain.learning_rate, dtype=torch.float64)
        torch.save(rate, into / "lr_best.pt")
    notes = ["images are whitened; zca.safetensors holds the transform"] * bool(plain.whitening)
    return [*notes, *_lost(distilled, "canvases")]


def _idc(distilled: DistilledSet, into: Path, mean: Numbers, std: Numbers) -> list[str]:
    """The list of IDC; canvases stay, the factor stands in the folder's name."""
    folder = into / f"factor{distilled.canvas_factor}"
    folder.mkdir(parents=True)
    torch.save([distilled.images, distilled.labels], folder / "data.pt")
    return _lost(distilled, "soft labels", "learning rate", "whitening")


def _images(distilled: DistilledSet, into: Path, mean: Numbers, std: Numbers) -> list[str]:
    """PNG files in folders of padded numbers, so that any order of names is the classes'."""
    plain = distilled.decoded()
    levels = plain.images.clamp(0, 1).mul(255).round().to(torch.uint8)
    counts: dict[int, int] = {}
    for image, label in zip(levels, plain.labels.tolist(), strict=True):
        number = counts[label] = counts.get(label, -1) + 1
        folder = into / f"{label:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        Image.fromarray(pixels.numpy()).save(folder / f"class{label:05d}_id{number:05d}.png")
    outside = float(((plain.images < 0) | (plain.images > 1)).float().mean())
    cut = [f"{outside:.1%} of the values lay outside [0, 1] and were cut"] if outside else []
    return [*cut, *_lost(distilled, "canvases", "soft labels", "learning rate", "whitening")]


def _safetensors(distilled: DistilledSet, into: Path, mean: Numbers, std: Numbers) -> list[str]:
    """All of it, as pixels."""
    distilled.write(into)
    return []


EXPORTS: Mapping[str, Callable[[DistilledSet, Path, Numbers, Numbers], list[str]]] = {
    "dc": _dc,
    "mtt": _mtt,
    "idc": _idc,
    "image-folder": _images,
    "safetensors": _safetensors,
}
NORMALISED = frozenset({"dc", "mtt"})


def _normalised(pixels: Tensor, mean: Numbers, std: Numbers) -> Tensor:
    shape = (1, -1, 1, 1)
    return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def _statistics(target: Target, normalisation: str) -> Statistics:
    if normalisation == OWN:
        return target.facts.mean, target.facts.std
    known = CONVENTIONS.get(normalisation, {}).get(target.dataset)
    if known is None:
        raise InvalidSpec(
            [f"{normalisation!r} has none for {target.dataset}; known: {known_conventions()}"],
            "--normalisation",
        )
    return known


def _lost(distilled: DistilledSet, *what: str) -> list[str]:
    has = {
        "canvases": distilled.canvas_factor > 1,
        "soft labels": distilled.logits is not None,
        "learning rate": distilled.learning_rate is not None,
        "whitening": distilled.whitening is not None,
    }
    return [_LOSSES[name] for name in what if has[name]]


_LOSSES = {
    "canvases": "canvases were decoded to the images that they hold",
    "soft labels": "the form has no place for soft labels; they were left out",
    "learning rate": "the form has no place for a learning rate; it was left out",
    "whitening": "the set was made for whitened images, which the form does not say",
}
