"""`overproof import` and `overproof export`: distilled sets from and for other code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overproof.cli.assets import Name, check_name, store_asset
from overproof.cli.backends import open_backends
from overproof.cli.output import JsonOption, print_json, say
from overproof.cli.targets import numbers
from overproof.local.assets import DATASETS, LABELS, SETS, target_of

if TYPE_CHECKING:
    from overproof.core.refs import ArtifactRef
    from overproof.ml.datasets.base import Dataset
    from overproof.runtime.wiring import Backends


def import_set(
    name: Name,
    source: Annotated[
        Path, typer.Argument(help="File or folder of published code.", show_default=False)
    ],
    dataset: Annotated[
        str, typer.Option(help="Data set that it was distilled from.", show_default=False)
    ],
    form: Annotated[
        str | None, typer.Option("--format", help="Name of the form, where the content misleads.")
    ] = None,
    item: Annotated[
        int | None, typer.Option(help="Which of several sets in a file; the last by default.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="unit, normalised or zca, where the values do not tell.")
    ] = None,
    normalisation: Annotated[
        str | None, typer.Option(help="Whose mean and deviation: dc, mtt, imagenet or own.")
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Of each channel, by commas.")] = None,
    std: Annotated[str | None, typer.Option(help="Of each channel, by commas.")] = None,
    zca: Annotated[
        str | None,
        typer.Option(help="File of the ZCA transform, or `fit` to fit it to the training images."),
    ] = None,
    canvas: Annotated[
        int | None, typer.Option(min=1, help="m, for canvases of m × m images; 1 for plain ones.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="File of the labels, where it is not beside the images.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side in pixels to scale image files to.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="That the method found, where no file holds it.")
    ] = None,
    fkd: Annotated[
        Path | None,
        typer.Option(help="Folder of soft labels of views (SRe2L, D4M): epoch_0/batch_0.tar, …"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what is seen, store nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a distilled set of published code and put it into the store; nothing in it runs."""
    from overproof.errors import InvalidSpec
    from overproof.ml.formats.content import Wishes
    from overproof.ml.formats.importing import FIT
    from overproof.ml.formats.importing import import_set as read_set

    check_name(name)
    if space not in (None, "unit", "normalised", "zca"):
        raise InvalidSpec([f"{space!r} is none of unit, normalised, zca"], "--space")
    wishes = Wishes(
        format=form,
        item=item,
        space=space,  # type: ignore[arg-type]  # checked above
        normalisation=normalisation,
        mean=numbers(mean, "--mean"),
        std=numbers(std, "--std"),
        zca=zca,
        canvas=canvas,
        labels=labels,
        size=size,
        learning_rate=learning_rate,
        fkd=fkd,
    )
    with TemporaryDirectory() as folder:
        into = Path(folder) / "set"
        with open_backends() as (_, backends):
            target = target_of(dataset, backends)
            trained_on = _dataset(dataset, backends, Path(folder)) if zca == FIT else None
        views = Path(folder) / "labels"
        facts = read_set(source, into, target, wishes, trained_on, labels_into=views)
        if fkd is not None and not dry_run:
            facts["soft_labels"] = store_asset(LABELS, name, views, {}).version
        asset = None if dry_run else store_asset(SETS, name, into, facts)
    if as_json:
        print_json(facts if asset is None else asset)
        return
    for line in report(facts):
        say(line)
    if asset is None:
        say("nothing was stored")
    else:
        say(f"{name} is in the store, version {asset.version[:12]}; in specs: `imported: {name}`")


def export(
    what: Annotated[
        str, typer.Argument(help="Name of an imported set, or id of a distilled one (dst-…).")
    ],
    into: Annotated[Path, typer.Argument(help="File or folder to make.", show_default=False)],
    form: Annotated[
        str,
        typer.Option("--format", help="dc, mtt, idc, image-folder or safetensors."),
    ],
    normalisation: Annotated[
        str, typer.Option(help="Whose mean and deviation the images get: dc, mtt, imagenet or own.")
    ] = "dc",
    as_json: JsonOption = False,
) -> None:
    """Write a distilled set in a form that other code reads."""
    from overproof.ml.distill.base import DistilledSet
    from overproof.ml.formats.exporting import export_set

    with TemporaryDirectory() as folder, open_backends() as (_, backends):
        ref, dataset = _stored_set(what, backends)
        target = target_of(dataset, backends)
        path = backends.store.fetch(ref, Path(folder) / "set")
        written = export_set(
            DistilledSet.read(path, target.facts), into, target, form, normalisation
        )
    if as_json:
        print_json(written)
        return
    say(f"{written['images']} images of {what} are in {into}, form {form}")
    for note in written["notes"]:
        say(f"note: {note}")


def report(facts: Mapping[str, Any]) -> list[str]:
    """What was seen of an imported set, in lines for people."""
    channels, height, width = facts["shape"]
    lines = [
        f"form {facts['form']}: {facts['images']} images of {channels} × {height} × {width}, "
        f"{facts['images_per_class']} of each of {facts['classes']} classes of {facts['dataset']}",
        f"labels: {facts['labels']}",
        f"stored as {facts['space']}, values {facts['range'][0]} … {facts['range'][1]}"
        + (
            f", mean {_list(facts['mean'])}, deviation {_list(facts['std'])}"
            if facts["mean"]
            else ""
        ),
        f"pixels {facts['pixels'][0]} … {facts['pixels'][1]}, channel means "
        f"{_list(facts['channel_means'])}",
    ]
    if facts["canvas_factor"] > 1:
        lines.append(
            f"canvases of {facts['canvas_factor']} × {facts['canvas_factor']}: "
            f"{facts['training_images']} images to train on"
        )
    if facts["learning_rate"] is not None:
        lines.append(f"learning rate {facts['learning_rate']:.4g}")
    return lines + [f"note: {note}" for note in facts["notes"]]


def _dataset(name: str, backends: Backends, folder: Path) -> Dataset:
    """The data set itself, from a library or from the store."""
    from overproof.core.spec import DatasetSpec
    from overproof.ml.datasets.base import load

    added = backends.repository.asset(DATASETS, name)
    packed = None if added is None else backends.store.fetch(added.ref, folder / "dataset")
    return load(DatasetSpec(name=name), packed)


def _stored_set(what: str, backends: Backends) -> tuple[ArtifactRef, str]:
    """Where a set lies, and the name of its data set.

    Raises:
        NotFound: there is no such set, or it is not yet made.
    """
    from overproof.artifacts import keys
    from overproof.artifacts.manifest import Manifest
    from overproof.core.ids import UnitId, is_unit_id
    from overproof.errors import NotFound

    if not is_unit_id(what):
        asset = backends.repository.asset(SETS, what)
        if asset is None:
            raise NotFound(f"no imported set is called {what}, and it is no id of a distilled one")
        return asset.ref, str(asset.facts["dataset"])
    job_id = backends.repository.carrier(UnitId(what))
    raw = backends.store.read(keys.manifest(job_id))
    if raw is None:
        raise NotFound(f"{what} is not yet made; see `overproof status {job_id}`")
    files = Manifest.decode(raw).units[what].files
    if "images" not in files:
        raise NotFound(f"{what} is no distilled set; it has {', '.join(files) or 'no files'}")
    spec = backends.repository.job_spec(job_id)
    [body] = [unit.body for unit in spec.units if unit.id == what]
    return files["images"], body["dataset"]["name"]


def _list(numbers: list[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)
