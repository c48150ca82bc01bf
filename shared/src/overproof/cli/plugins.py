"""`overproof plugins`: what there is to choose from, read from the catalogs without torch."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overproof.cli.output import JsonOption, plain, print_json, print_table, say

if TYPE_CHECKING:
    from overproof.core.registry import PluginInfo, Registry


class PluginKind(StrEnum):
    """The catalogs."""

    DISTILLATION = "distillation"
    ATTACKS = "attacks"
    MODELS = "models"
    DATASETS = "datasets"
    METRICS = "metrics"
    PROTOCOLS = "protocols"
    TASKS = "tasks"


app = typer.Typer(no_args_is_help=True, help="List methods, attacks, models, data sets and more.")

Kind = Annotated[PluginKind, typer.Argument(help="Which catalog.", show_choices=True)]


@app.command("list")
def list_plugins(
    kind: Kind,
    pattern: Annotated[str, typer.Option(help="Only names that match this wildcard.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the plug-ins of a kind."""
    registry = _registry(kind)
    infos = [registry.get(name) for name in registry.names(pattern)]
    if as_json:
        print_json([_described(info) for info in infos])
        return
    print_table(
        ["name", "what it is", "source"], [(info.name, info.summary, info.source) for info in infos]
    )


@app.command("show")
def show_plugin(
    kind: Kind,
    name: Annotated[str, typer.Argument(help="Name or alias.")],
    as_json: JsonOption = False,
) -> None:
    """Show one plug-in with its parameters."""
    info = _registry(kind).get(name)
    described = _described(info)
    if as_json:
        print_json(described)
        return
    say(f"{info.name}: {info.summary}")
    say(f"source: {info.source}")
    if info.needs:
        say(f"needs: {info.needs}")
    for key in ("aliases", "tags"):
        if described[key]:
            say(f"{key}: {', '.join(described[key])}")
    for key, value in described["facts"].items():
        say(f"{key}: {value}")
    if described["params"]:
        print_table(
            ["parameter", "type", "default"],
            [
                (
                    param["name"],
                    param["type"],
                    "required" if param["required"] else param["default"],
                )
                for param in described["params"]
            ],
        )


def _registry(kind: PluginKind) -> Registry:
    from overproof.catalog.attacks import ATTACKS
    from overproof.catalog.datasets import DATASETS
    from overproof.catalog.distillation import DISTILLATION
    from overproof.catalog.metrics import METRICS
    from overproof.catalog.models import MODELS
    from overproof.catalog.protocols import PROTOCOLS
    from overproof.catalog.tasks import TASKS
    from overproof.runtime.plugins import load_plugins
    from overproof.runtime.settings import Settings

    load_plugins(Settings.from_env().plugins)
    registries = {
        PluginKind.DISTILLATION: DISTILLATION,
        PluginKind.ATTACKS: ATTACKS,
        PluginKind.MODELS: MODELS,
        PluginKind.DATASETS: DATASETS,
        PluginKind.METRICS: METRICS,
        PluginKind.PROTOCOLS: PROTOCOLS,
        PluginKind.TASKS: TASKS,
    }
    return registries[kind]


def _described(info: PluginInfo) -> dict[str, Any]:
    schema = info.params.model_json_schema()
    required = set(schema.get("required", ()))
    return {
        "name": info.name,
        "summary": info.summary,
        "source": info.source,
        "semantics": info.semantics,
        "needs": info.needs,
        "aliases": list(info.aliases),
        "tags": sorted(info.tags),
        "facts": _facts(info),
        "params": [
            {
                "name": name,
                "type": _type_text(field),
                "default": field.get("default"),
                "required": name in required,
            }
            for name, field in schema.get("properties", {}).items()
        ],
    }


def _facts(info: PluginInfo) -> dict[str, Any]:
    """What the catalog knows beyond what all plug-ins have: a norm, a shape, a unit."""
    from overproof.core.registry import PluginInfo

    common = {field.name for field in fields(PluginInfo)}
    own = {field.name: getattr(info, field.name) for field in fields(info)}
    return {
        name: value.__name__ if isinstance(value, type) else plain(value)
        for name, value in own.items()
        if name not in common
    }


def _type_text(field: dict[str, Any]) -> str:
    """A JSON schema in words: `integer, at least 1`, `real | noise`."""
    if "anyOf" in field:
        return " | ".join(_type_text(choice) for choice in field["anyOf"])
    if "enum" in field:
        return " | ".join(str(choice) for choice in field["enum"])
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    text = str(field.get("type", "any"))
    return ", ".join(
        [text, *(f"{word} {field[key]}" for key, word in bounds.items() if key in field)]
    )
