"""Parts of a grid: one method or kind of set on one data set, with the exceptions that fit it."""

from __future__ import annotations

from typing import Any

from overproof.catalog.protocols import for_method
from overproof.core.spec import DatasetSpec, ExceptionSpec, ExperimentSpec, PluginRef


def parts(spec: ExperimentSpec, source: DatasetSpec) -> list[ExperimentSpec]:
    """Grids without exceptions that together are `spec` on `source`.

    Args:
        spec: resolved.
        source: one of its data sets.
    """
    nothing: dict[str, Any] = {"whole_set": False, "methods": (), "imported": ()}
    found = []
    if spec.whole_set:
        found.append(_with_exceptions(spec, source, None, nothing | {"whole_set": True}))
    found += [
        _with_exceptions(spec, source, method, nothing | {"methods": (method,)})
        for method in spec.methods
    ]
    if spec.imported:
        found.append(_with_exceptions(spec, source, None, nothing | {"imported": spec.imported}))
    return found


def _with_exceptions(
    spec: ExperimentSpec, source: DatasetSpec, method: PluginRef | None, changes: dict[str, Any]
) -> ExperimentSpec:
    for exception in spec.exceptions:
        if _fits(exception, source, method):
            for name in ("networks", "matching_network", "protocol"):
                changes[name] = getattr(exception, name) or changes.get(name, getattr(spec, name))
    protocol = for_method(changes.get("protocol", spec.protocol), method)
    return spec.model_copy(update=changes | {"protocol": protocol})


def _fits(exception: ExceptionSpec, source: DatasetSpec, method: PluginRef | None) -> bool:
    if exception.datasets and source.name not in exception.datasets:
        return False
    return not exception.methods or (method is not None and method.name in exception.methods)
