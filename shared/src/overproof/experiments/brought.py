"""Distilled sets and networks that somebody brought, looked up for a plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from overproof.core.spec import AssetSpec, DatasetSpec
from overproof.results.views import Asset

# What somebody brought, by kind (`sets` or `weights`), name and version (None for the newest).
Assets = Callable[[str, str, str | None], Asset | None]
SETS, WEIGHTS = "sets", "weights"

_WORDS = {
    SETS: ("distilled set", "`overproof import NAME PATH --dataset DATASET`"),
    WEIGHTS: ("network", "`overproof weights add NAME PATH --network NETWORK --dataset DATASET`"),
}


def no_assets(kind: str, name: str, version: str | None) -> Asset | None:
    """A store to which nobody has brought anything."""
    return None


class Brought:
    """What a spec names of it, found in the store once.

    Args:
        assets: looks it up.
        faults: takes a line for each one that cannot be used.
    """

    def __init__(self, assets: Assets, faults: list[str]) -> None:
        self._assets = assets
        self._faults = faults
        self._facts: dict[tuple[str, AssetSpec], Mapping[str, Any]] = {}

    def resolve(
        self, kind: str, specs: Sequence[AssetSpec], path: str, datasets: Set[str]
    ) -> tuple[AssetSpec, ...]:
        """`specs` with their versions; `datasets` are those of the experiment."""
        return tuple(
            self._resolve(kind, spec, f"{path}.{i}", datasets) for i, spec in enumerate(specs)
        )

    def of(
        self, kind: str, specs: Sequence[AssetSpec], source: DatasetSpec
    ) -> list[tuple[AssetSpec, Mapping[str, Any]]]:
        """Those of the resolved `specs` that belong to the data set `source`, with their facts."""
        known = [(spec, self._facts[kind, spec]) for spec in specs]
        return [(spec, facts) for spec, facts in known if facts["dataset"] == source.name]

    def _resolve(self, kind: str, spec: AssetSpec, path: str, datasets: Set[str]) -> AssetSpec:
        what, command = _WORDS[kind]
        asset = self._assets(kind, spec.name, spec.version or None)
        if asset is None:
            which = f"{spec.name}@{spec.version[:8]}" if spec.version else spec.name
            self._faults.append(f"{path}: no {what} {which} is in the store; bring it by {command}")
            return spec
        belongs_to = asset.facts.get("dataset")
        if belongs_to is None:
            self._faults.append(
                f"{path}: nobody said what {what} {spec.name} is for; add it again by {command}"
            )
        elif belongs_to not in datasets:
            self._faults.append(
                f"{path}: {spec.name} was made for {belongs_to}, which is none of the experiment's "
                "datasets"
            )
        resolved = spec.model_copy(update={"version": asset.version})
        self._facts[kind, resolved] = asset.facts
        return resolved


def group_facts(what: str, asset: AssetSpec) -> dict[str, Any]:
    """What results show in the place of a method: `imported[name=mtt@1f2e3d4c]`.

    Args:
        what: `imported` for a set, `weights` for a network.
        asset: resolved.
    """
    return {
        "method": {"name": what, "params": {"name": f"{asset.name}@{asset.version[:8]}"}},
        what: json.loads(asset.model_dump_json()),
    }
