"""One unit with its id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from overproof.catalog.tasks import task
from overproof.core.ids import GroupId, UnitId, unit_id_of
from overproof.core.registry import Registry
from overproof.core.spec import PluginRef, Unit


def make_unit(
    task_name: str,
    body: BaseModel,
    *,
    plugins: Iterable[tuple[Registry, PluginRef | None]] = (),
    needs: Sequence[UnitId] = (),
    group: GroupId | None = None,
) -> Unit:
    """A unit with its id.

    Args:
        task_name: name of the task.
        body: the task's typed body; all references in it canonical.
        plugins: the plug-ins that the body names: their `semantics` enter the id.
        needs: units whose artifacts it reads.
        group: the units that differ only in seeds.
    """
    info = task(task_name)
    plain: dict[str, Any] = json.loads(body.model_dump_json())
    semantics = semantics_of_tasks(info.name) | semantics_of(plugins)
    return Unit(
        id=unit_id_of(info.kind, info.name, plain, semantics),
        kind=info.kind,
        task=info.name,
        body=plain,
        needs=tuple(needs),
        group=group,
    )


def semantics_of_tasks(*names: str) -> dict[str, int]:
    """As `semantics_of`, of tasks."""
    return {f"task:{name}": task(name).semantics for name in names}


def semantics_of(plugins: Iterable[tuple[Registry, PluginRef | None]]) -> dict[str, int]:
    """Registry and name of each plug-in → its `semantics`."""
    return {
        f"{registry.kind}:{ref.name}": registry.get(ref.name).semantics
        for registry, ref in plugins
        if ref is not None
    }
