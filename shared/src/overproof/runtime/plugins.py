"""Registers plug-ins from outside, by one explicit call at the start of each process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from overproof.catalog import manifests
from overproof.catalog.attacks import ATTACKS
from overproof.catalog.datasets import DATASETS
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.metrics import METRICS
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.tasks import TASKS
from overproof.errors import InvalidSpec, SettingsError

REGISTRIES = (ATTACKS, DATASETS, DISTILLATION, METRICS, MODELS, PROTOCOLS, TASKS)

_MANIFESTS = (".yaml", ".yml", ".json")


def load_plugins(plugins: Sequence[str]) -> None:
    """Register the plug-ins of installed packages and those of `plugins`.

    An entry is `module:function`, which is called without arguments and adds to the registries, or
    the path of a manifest (`catalog.manifests`). All of it happens once in a process, however often
    this is called.

    Raises:
        SettingsError: an entry of `plugins` that cannot be imported or read.
    """
    _register_entry_points()
    for entry in plugins:
        _register(entry)


@cache
def _register_entry_points() -> None:
    for registry in REGISTRIES:
        registry.add_entry_points()


@cache
def _register(entry: str) -> None:
    if entry.endswith(_MANIFESTS):
        _register_manifest(Path(entry))
        return
    module, _, function = entry.partition(":")
    try:
        register = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"OVERPROOF_PLUGINS: {entry!r} cannot be imported: {error}; write module:function"
        ) from error
    register()


def _register_manifest(path: Path) -> None:
    try:
        manifests.register(manifests.read(path), models=MODELS, datasets=DATASETS)
    except InvalidSpec as error:
        raise SettingsError(f"OVERPROOF_PLUGINS: {error}") from None
