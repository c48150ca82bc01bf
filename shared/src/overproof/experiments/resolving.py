"""From the names in a spec to plug-ins and versions, all defaults filled in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from overproof.catalog.attacks import ATTACKS, attack
from overproof.catalog.datasets import DATASETS, dataset
from overproof.catalog.distillation import BATCH_STATISTICS, DISTILLATION
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.suites import suite
from overproof.catalog.teaching import TaughtParams
from overproof.core.faults import faults_of
from overproof.core.registry import Registry
from overproof.core.spec import (
    AssetSpec,
    AttackGrid,
    DatasetSpec,
    ExceptionSpec,
    ExperimentSpec,
    PluginRef,
    RankingSpec,
)
from overproof.core.threat import ThreatModel
from overproof.errors import InvalidSpec, UnknownPlugin
from overproof.experiments.brought import SETS, WEIGHTS, Assets, Brought, no_assets
from overproof.experiments.ranking import faults_of as faults_of_ranking

# The newest version of a data set that users added, None when there is none of that name.
DatasetVersions = Callable[[str], str | None]


@dataclass
class Resolver:
    """Fills in defaults and versions, collecting every fault before it gives up."""

    versions: DatasetVersions
    assets: Assets = no_assets
    faults: list[str] = field(default_factory=list)
    brought: Brought = field(init=False)

    def __post_init__(self) -> None:
        self.brought = Brought(self.assets, self.faults)

    def resolve(self, spec: ExperimentSpec) -> ExperimentSpec:
        """`spec` with canonical names, full parameters, versions and the attacks of its suites.

        Raises:
            InvalidSpec: all faults that were found.
        """
        datasets = tuple(
            self._dataset(item, f"datasets.{i}") for i, item in enumerate(spec.datasets)
        )
        methods = self._all(DISTILLATION, spec.methods, "methods")
        networks = self._all(MODELS, spec.networks, "networks")
        matching = networks[0] if networks else None
        if spec.matching_network is not None:
            matching = self._one(MODELS, spec.matching_network, "matching_network")
        protocol = self._one(PROTOCOLS, spec.protocol, "protocol")
        teacher_protocol = self._teacher_protocol(spec.teacher_protocol)
        known = {item.name for item in datasets}
        imported = self.brought.resolve(SETS, spec.imported, "imported", known)
        weights = self.brought.resolve(WEIGHTS, spec.weights, "weights", known)
        teacher, teacher_weights = self._teacher(spec, matching, datasets)
        attacks = tuple(self._attack(grid, f"attacks.{i}") for i, grid in enumerate(spec.attacks))
        suites = tuple(self._suite(name, f"suites.{i}") for i, name in enumerate(spec.suites))
        exceptions = tuple(
            self._exception(item, f"exceptions.{i}", spec, methods)
            for i, item in enumerate(spec.exceptions)
        )
        others = [item.protocol for item in exceptions if item.protocol is not None]
        ranking = self._ranking(spec, [protocol, *others])
        if self.faults:
            raise InvalidSpec(self.faults, f"spec {spec.name!r}")
        return spec.model_copy(
            update={
                "datasets": datasets,
                "methods": methods,
                "networks": networks,
                "matching_network": matching,
                "protocol": protocol,
                "exceptions": exceptions,
                "ranking": ranking,
                "teacher": teacher,
                "teacher_protocol": teacher_protocol,
                "teacher_weights": teacher_weights,
                "imported": imported,
                "weights": weights,
                "attacks": (*attacks, *(grid for grids in suites for grid in grids)),
            }
        )

    def _exception(
        self, spec: ExceptionSpec, path: str, of: ExperimentSpec, methods: Sequence[PluginRef]
    ) -> ExceptionSpec:
        known = {
            "datasets": {item.name for item in of.datasets},
            "methods": {method.name for method in methods},
        }
        named = {
            "datasets": spec.datasets,
            "methods": tuple(
                DISTILLATION.get(name).name if name in DISTILLATION else name
                for name in spec.methods
            ),
        }
        for what, names in named.items():
            self.faults.extend(
                f"{path}.{what}: {name} is none of the experiment's {what}"
                for name in names
                if name not in known[what]
            )
        networks = self._all(MODELS, spec.networks, f"{path}.networks")
        matching = spec.matching_network
        if matching is not None:
            matching = self._one(MODELS, matching, f"{path}.matching_network")
        elif networks and of.matching_network is None:
            matching = networks[0]
        protocol = spec.protocol and self._one(PROTOCOLS, spec.protocol, f"{path}.protocol")
        return spec.model_copy(
            update={
                **named,
                "networks": networks,
                "matching_network": matching,
                "protocol": protocol,
            }
        )

    def _ranking(self, spec: ExperimentSpec, protocols: Sequence[PluginRef]) -> RankingSpec | None:
        if spec.ranking is None:
            return None
        named = {
            name: self._one(PROTOCOLS, ref, f"ranking.{name}")
            for name, ref in (("hard", spec.ranking.hard), ("whole", spec.ranking.whole))
        }
        ranking = spec.ranking.model_copy(update=named)
        if not self.faults:
            self.faults.extend(faults_of_ranking(ranking, protocols))
        return ranking

    def _all(
        self, registry: Registry, refs: Sequence[PluginRef], path: str
    ) -> tuple[PluginRef, ...]:
        return tuple(self._one(registry, ref, f"{path}.{i}") for i, ref in enumerate(refs))

    def _one(self, registry: Registry, ref: PluginRef, path: str) -> PluginRef:
        try:
            return registry.canonical(ref)
        except UnknownPlugin as error:
            self.faults.append(f"{path}: {error}")
        except InvalidSpec as error:
            self.faults.extend(f"{path}.params.{fault}" for fault in error.faults)
        return ref

    def _teacher(
        self, spec: ExperimentSpec, matching: PluginRef | None, datasets: Sequence[DatasetSpec]
    ) -> tuple[PluginRef | None, AssetSpec | None]:
        """The network of teachers, and the weights if somebody brought them."""
        teacher, weights = spec.teacher, spec.teacher_weights
        if weights is not None:
            known, faults = {item.name for item in datasets}, len(self.faults)
            (weights,) = self.brought.resolve(WEIGHTS, [weights], "teacher_weights", known)
            for source in datasets if len(self.faults) == faults else ():
                found = self.brought.of(WEIGHTS, [weights], source)
                if found:
                    teacher = PluginRef.model_validate(found[0][1]["network"])
                else:
                    self.faults.append(
                        f"teacher_weights: {weights.name} does not know the classes of "
                        f"{source.name}; leave that data set to another experiment"
                    )
        if teacher is not None:
            teacher = self._one(MODELS, teacher, "teacher")
        elif matching is not None and matching.name in MODELS:
            choosable = "norm" in MODELS.get(matching.name).params.model_fields
            norm = {"norm": "batch"} if choosable else {}
            teacher = matching.model_copy(update={"params": {**matching.params, **norm}})
        if teacher is not None and teacher.params.get("norm", "batch") != "batch":
            self.faults.extend(
                f"methods.{i}: {method.name} compares batch statistics, which the teacher "
                f"{teacher.name} has not; give it norm: batch"
                for i, method in enumerate(spec.methods)
                if method.name in DISTILLATION
                and BATCH_STATISTICS in DISTILLATION.get(method.name).tags
            )
        return teacher, weights

    def _teacher_protocol(self, ref: PluginRef) -> PluginRef:
        protocol = self._one(PROTOCOLS, ref, "teacher_protocol")
        if ref.name in PROTOCOLS and issubclass(PROTOCOLS.get(ref.name).params, TaughtParams):
            self.faults.append(
                f"teacher_protocol: {ref.name} wants a teacher itself; name another, e.g. squeeze"
            )
        return protocol

    def _dataset(self, spec: DatasetSpec, path: str) -> DatasetSpec:
        bundled = dataset(spec.name).bundled_version if spec.name in DATASETS else ""
        version = spec.version or bundled or self.versions(spec.name)
        if version:
            return spec.model_copy(update={"version": version})
        close = difflib.get_close_matches(spec.name, DATASETS.names(), n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}? " if close and close[0] != spec.name else ""
        self.faults.append(
            f"{path}: data set {spec.name!r} is not in the store; {hint}"
            f"add it with `overproof data add {spec.name} PATH`"
        )
        return spec

    def _suite(self, name: str, path: str) -> tuple[AttackGrid, ...]:
        try:
            grids = suite(name).attacks
        except UnknownPlugin as error:
            self.faults.append(f"{path}: {error}")
            return ()
        return tuple(self._attack(grid, path) for grid in grids)

    def _attack(self, grid: AttackGrid, path: str) -> AttackGrid:
        ref = self._one(ATTACKS, PluginRef(name=grid.name, params=grid.params), path)
        if grid.name in ATTACKS:
            norm = attack(grid.name).norm
            for i, epsilon in enumerate(grid.epsilons):
                try:
                    ThreatModel(norm=norm, epsilon=epsilon)
                except ValidationError as error:
                    for fault in faults_of(error):
                        self.faults.append(f"{path}.epsilons.{i}: {fault.split(': ', 1)[1]}")
        return grid.model_copy(update={"name": ref.name, "params": ref.params})
