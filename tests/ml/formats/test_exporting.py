"""What is exported and imported again is the same set, as far as the form can hold it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overproof.errors import InvalidData, InvalidSpec
from overproof.ml.augment.zca import Whitening
from overproof.ml.distill.base import DistilledSet
from overproof.ml.formats.content import Wishes
from overproof.ml.formats.exporting import EXPORTS, export_set
from overproof.ml.formats.importing import import_set
from tests.ml.formats import published
from tests.ml.formats.published import TARGET

PLAIN = DistilledSet(images=published.pixels() * 1.1 - 0.05, labels=published.classes())
RICH = DistilledSet(
    images=published.pixels(),
    labels=published.classes(),
    logits=published.logits(),
    learning_rate=0.02,
    canvas_factor=2,
)


def there_and_back(
    made: DistilledSet, form: str, folder: Path, **wishes: Any
) -> tuple[DistilledSet, list[str]]:
    into = folder / ("exported.pt" if form == "dc" else "exported")
    if form == "safetensors":
        into = into.with_suffix(".safetensors")
    written = export_set(made, into, TARGET, form, "dc")
    source = into / f"factor{made.canvas_factor}" if form == "idc" else into
    import_set(source, folder / "again", TARGET, Wishes(**wishes))
    return DistilledSet.read(folder / "again", TARGET.facts), written["notes"]


@pytest.mark.parametrize("form", EXPORTS)
def test_plain_set_comes_back(tmp_path: Path, form: str) -> None:
    found, notes = there_and_back(PLAIN, form, tmp_path)

    expected, tolerance = PLAIN.images, 1e-5
    if form == "image-folder":  # bytes hold no more
        expected, tolerance = expected.clamp(0, 1), 0.51 / 255
    assert torch.allclose(found.images, expected, atol=tolerance)
    assert torch.equal(found.labels, PLAIN.labels)
    assert (found.logits, found.learning_rate, found.canvas_factor) == (None, None, 1)
    assert ["were cut" in note for note in notes] == [True] * (form == "image-folder")


@pytest.mark.parametrize("form", EXPORTS)
def test_what_a_form_cannot_hold_is_said(tmp_path: Path, form: str) -> None:
    found, notes = there_and_back(RICH, form, tmp_path)

    keeps = {
        "dc": set(),
        "mtt": {"soft labels", "learning rate"},
        "idc": {"canvases"},
        "image-folder": set(),
        "safetensors": {"soft labels", "learning rate", "canvases"},
    }[form]
    lost = {"soft labels", "learning rate", "canvases"} - keeps
    assert {
        word for word in ("soft labels", "learning rate", "canvases") if word in str(notes)
    } == (lost)
    assert (found.logits is not None) is ("soft labels" in keeps)
    assert (found.learning_rate is not None) is ("learning rate" in keeps)
    expected = RICH if "canvases" in keeps else RICH.decoded()
    assert found.canvas_factor == expected.canvas_factor
    assert torch.allclose(found.images, expected.images, atol=0.51 / 255)
    if found.logits is not None and expected.logits is not None:
        assert torch.allclose(found.logits, expected.logits)
        assert found.learning_rate == pytest.approx(0.02)


def test_whitened_set_goes_out_whitened_and_comes_back_with_its_transform(tmp_path: Path) -> None:
    whitening = Whitening.fit(torch.rand(50, 3, 8, 8), torch.device("cpu"))
    made = replace(PLAIN, whitening=whitening)

    white, _ = there_and_back(
        made, "mtt", tmp_path, space="zca", zca=str(tmp_path / "exported" / "zca.safetensors")
    )
    whole, _ = there_and_back(made, "safetensors", tmp_path)

    for found in (white, whole):
        assert torch.allclose(found.images, made.images, atol=1e-4)
        assert found.whitening is not None
        assert torch.equal(found.whitening.matrix, whitening.matrix)
        assert torch.equal(found.whitening.mean, whitening.mean)
    _, notes = there_and_back(made, "dc", tmp_path)
    assert notes == ["the set was made for whitened images, which the form does not say"]


def test_exported_statistics_are_those_that_were_named(tmp_path: Path) -> None:
    export_set(PLAIN, tmp_path / "own.pt", TARGET, "dc", "own")

    stored = torch.load(tmp_path / "own.pt", weights_only=True)["data"][-1][0]

    assert torch.allclose(stored, (PLAIN.images - 0.5) / 0.25, atol=1e-6)


def test_nothing_is_overwritten_and_unknown_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="exists; name another place"):
        export_set(PLAIN, tmp_path, TARGET, "mtt", "dc")
    with pytest.raises(InvalidSpec, match="no form is called 'tfrecord'; known: dc, mtt"):
        export_set(PLAIN, tmp_path / "new", TARGET, "tfrecord", "dc")
    with pytest.raises(InvalidSpec, match="'theirs' has none for cifar-10; known: dc"):
        export_set(PLAIN, tmp_path / "new", TARGET, "dc", "theirs")
    assert not list(tmp_path.iterdir())
