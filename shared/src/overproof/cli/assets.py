"""`overproof data` and `overproof weights`: what users bring, packed once into the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overproof.cli.backends import open_backends, open_repository
from overproof.cli.output import JsonOption, moment, print_json, print_table, say
from overproof.local.assets import DATASETS, WEIGHTS, put_asset

if TYPE_CHECKING:
    from overproof.core.spec import PluginRef
    from overproof.results.views import Asset


data = typer.Typer(no_args_is_help=True, help="Data sets that you bring.")
weights = typer.Typer(no_args_is_help=True, help="Weights of networks that you bring.")

Name = Annotated[str, typer.Argument(help="What specs call it.", show_default=False)]


@data.command("add")
def add_data(
    name: Name,
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder as torchvision leaves it, IDX files, a folder or tar of images, or .npz.",
            show_default=False,
        ),
    ],
    size: Annotated[
        int | None, typer.Option(min=1, help="Side in pixels, for images of several sizes.")
    ] = None,
    mirrors: Annotated[
        bool,
        typer.Option("--mirrors", help="A mirrored image keeps its class (photographs, not text)."),
    ] = False,
    per_class: Annotated[
        int | None,
        typer.Option(min=1, help="First so many training images of a class, for ImageNet."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pack a data set and put it into the store; its hash is the version."""
    from overproof.ml.datasets.packing import pack

    check_name(name)
    with TemporaryDirectory() as folder:
        packed = Path(folder) / "packed"
        facts = pack(name, source, packed, size=size, mirrors=mirrors, per_class=per_class)
        asset = store_asset(DATASETS, name, packed, facts)
    if as_json:
        print_json(asset)
    else:
        shape = " × ".join(str(side) for side in facts["shape"])
        say(
            f"{facts['training_images']} training and {facts['test_images']} test images of "
            f"{shape}, {facts['classes']} classes, mean {facts['mean']}, deviation {facts['std']}"
        )
        say(f"{name} is in the store, version {asset.version[:12]}, {asset.ref.size_bytes} bytes")


@data.command("list")
def list_data(as_json: JsonOption = False) -> None:
    """List the data sets in the store, each name's latest version first."""
    _list(DATASETS, as_json=as_json)


@weights.command("add")
def add_weights(
    name: Name,
    source: Annotated[
        Path,
        typer.Argument(help="safetensors, or a checkpoint of torch.", show_default=False),
    ],
    network: Annotated[
        str,
        typer.Option(
            help="As in specs: `resnet-18`, or `{name: convnet, params: {width: 64}}`.",
            show_default=False,
        ),
    ],
    dataset: Annotated[
        str, typer.Option(help="Data set that it was trained for.", show_default=False)
    ],
    normalisation: Annotated[
        str | None,
        typer.Option(help="Whose mean and deviation it was trained with: own, dc, mtt, imagenet."),
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Of each channel, by commas.")] = None,
    std: Annotated[str | None, typer.Option(help="Of each channel, by commas.")] = None,
    which: Annotated[
        str | None, typer.Option(help="Place in the file, where it holds several: `ema`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit weights to a network and put them into the store; no code in the file runs."""
    from overproof.cli.targets import numbers
    from overproof.local.assets import target_of
    from overproof.ml.formats.networks import import_network

    check_name(name)
    with TemporaryDirectory() as folder:
        into = Path(folder) / "weights"
        with open_backends() as (_, backends):
            target = target_of(dataset, backends)
        facts = import_network(
            source,
            into,
            target,
            _network(network),
            normalisation=normalisation,
            mean=numbers(mean, "--mean"),
            std=numbers(std, "--std"),
            which=which,
        )
        asset = store_asset(WEIGHTS, name, into, facts)
    if as_json:
        print_json(asset)
        return
    for note in facts["notes"]:
        say(f"note: {note}")
    say(
        f"{name} is in the store, version {asset.version[:12]}, {facts['parameters']} numbers; in "
        f"specs: `weights: {name}`"
    )


def _network(text: str) -> PluginRef:
    """A network as specs write it.

    Raises:
        InvalidSpec: it is none.
    """
    import yaml
    from pydantic import ValidationError

    from overproof.catalog.models import MODELS
    from overproof.core.faults import faults_of
    from overproof.core.spec import PluginRef
    from overproof.errors import InvalidSpec

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: the 99th of a month
        raise InvalidSpec([f"{text[:60]!r} is no YAML"], "--network") from None
    try:
        return MODELS.canonical(PluginRef.model_validate(value))
    except ValidationError as error:
        raise InvalidSpec(faults_of(error, model=PluginRef), "--network") from None


@weights.command("list")
def list_weights(as_json: JsonOption = False) -> None:
    """List the weights in the store, each name's latest version first."""
    _list(WEIGHTS, as_json=as_json)


def check_name(name: str) -> None:
    """Refuse a name that no spec could use.

    Raises:
        InvalidData: it is none.
    """
    from pydantic import TypeAdapter, ValidationError

    from overproof.core.spec import Name as SpecName
    from overproof.errors import InvalidData

    try:
        TypeAdapter(SpecName).validate_python(name)
    except ValidationError:
        raise InvalidData(
            f"{name[:40]!r} is no name; use up to 100 letters, digits and . _ -, beginning with a "
            "letter or digit"
        ) from None


def store_asset(kind: str, name: str, packed: Path, facts: Mapping[str, Any]) -> Asset:
    """See `local.assets.put_asset`."""
    with open_backends() as (_, backends):
        return put_asset(backends, kind, name, packed, facts)


def _list(kind: str, *, as_json: bool) -> None:
    with open_repository() as repository:
        assets = repository.assets(kind)
    if as_json:
        print_json(assets)
        return
    print_table(
        ["name", "version", "bytes", "added (UTC)", "facts"],
        [
            (
                each.name,
                each.version[:12],
                each.ref.size_bytes,
                moment(each.created_at),
                ", ".join(f"{key} {value}" for key, value in each.facts.items() if key != "name"),
            )
            for each in assets
        ],
        numbers={"bytes"},
    )
