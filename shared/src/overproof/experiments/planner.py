"""Turns an experiment's grid into units with ids, and units into jobs.

Planning reads no database but for the versions of data sets: equal specs give equal units wherever
they are planned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from overproof.catalog.attacks import ATTACKS, attack
from overproof.catalog.distillation import ASKS_TEACHER, DISTILLATION, NETWORK_FREE, WHOLE
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.tasks import task
from overproof.core.canonical import canonical_json
from overproof.core.ids import ComparisonId, GroupId, UnitId, group_id_of
from overproof.core.ranking import RANKING
from overproof.core.spec import (
    AssetSpec,
    CellBody,
    DatasetSpec,
    DistilledSetBody,
    ExperimentSpec,
    ImportedNetworkBody,
    ImportedSetBody,
    JobSpec,
    NetworkBody,
    PluginRef,
    Unit,
)
from overproof.core.threat import ThreatModel
from overproof.experiments.brought import (
    SETS,
    WEIGHTS,
    Assets,
    Brought,
    group_facts,
    no_assets,
)
from overproof.experiments.parts import parts
from overproof.experiments.prerequisites import (
    asks_teacher,
    experts_of,
    imported_labels_of,
    prototypes_of,
    soft_labels_of,
    teacher_of,
)
from overproof.experiments.ranking import is_ranked, references
from overproof.experiments.resolving import DatasetVersions, Resolver
from overproof.experiments.units import make_unit, semantics_of, semantics_of_tasks
from overproof.results.views import Comparison

# A job message must stay below 64 KiB, and a unit takes up to about 900 bytes.
MAX_UNITS_PER_JOB = 48


@dataclass(frozen=True)
class ExperimentPlan:
    """All units of an experiment, those that exist already included.

    Attributes:
        units: each after the units that it needs.
        groups: what the units of a group have in common: dataset, method (None for the whole
            set), images_per_class, matching_network, network, protocol, test_set.
        comparisons: of these groups.
    """

    spec: ExperimentSpec
    units: tuple[Unit, ...]
    groups: Mapping[GroupId, Mapping[str, Any]]
    comparisons: tuple[Comparison, ...] = ()


def plan(
    spec: ExperimentSpec, versions: DatasetVersions, assets: Assets = no_assets
) -> ExperimentPlan:
    """Expand the grid of `spec`.

    Raises:
        InvalidSpec: names or parameters that no plug-in knows, or data sets, sets or weights that
            nobody added; all of them are listed.
    """
    resolver = Resolver(versions, assets)
    resolved = resolver.resolve(spec)
    brought = resolver.brought
    builder = _Builder()
    for source in resolved.datasets:
        for part in parts(resolved, source):
            for training_set in _training_sets(part, source, brought):
                for network in part.networks:
                    own = _narrowed(part, training_set, network)
                    _add_networks(builder, own, training_set)
                    if own.ranking and is_ranked(training_set.method, training_set.imported):
                        _add_ranking(builder, own, brought)
        for asset, facts in brought.of(WEIGHTS, resolved.weights, source):
            _add_imported_network(builder, resolved, source, asset, facts)
    return ExperimentPlan(
        spec,
        tuple(builder.units.values()),
        builder.groups,
        tuple(builder.comparisons.values()),
    )


def batch(units: Sequence[Unit]) -> list[JobSpec]:
    """Jobs of units that are cheaper together: those that agree in all but what their task varies.

    The result depends on the set of units alone, not on their order.
    """
    batches: dict[bytes, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit.id):
        varies = task(unit.task).varies
        fixed = {name: value for name, value in unit.body.items() if name not in varies}
        own = {} if varies else {"unit": unit.id}
        key = canonical_json({"kind": unit.kind, "task": unit.task, "fixed": fixed} | own)
        batches.setdefault(key, []).append(unit)
    return [
        JobSpec.of(tuple(members[start : start + most]))
        for members in batches.values()
        for most in [task(members[0].task).most_units or MAX_UNITS_PER_JOB]
        for start in range(0, len(members), most)
    ]


# ---- building units --------------------------------------------------------------------------


@dataclass
class _Builder:
    units: dict[UnitId, Unit] = field(default_factory=dict)
    groups: dict[GroupId, Mapping[str, Any]] = field(default_factory=dict)
    comparisons: dict[ComparisonId, Comparison] = field(default_factory=dict)

    def add(self, unit: Unit) -> UnitId:
        unit_id = UnitId(unit.id)
        known = self.units.setdefault(unit_id, unit)
        # A network that was brought can be a teacher, of no group, and a victim.
        if known.group is None and unit.group is not None:
            self.units[unit_id] = unit
        return unit_id


@dataclass(frozen=True)
class _TrainingSet:
    """What networks are trained on: distilled sets by seed, or a whole data set.

    `prerequisites` are the units that the distilled sets need. `imported` is a set that somebody
    brought, with the seeds of the networks that are trained on it; `labels` came with it.
    """

    source: DatasetSpec
    method: PluginRef | None = None
    matching_network: PluginRef | None = None
    images_per_class: int | None = None
    distilled: Mapping[int, Unit] = field(default_factory=dict)
    prerequisites: Sequence[Unit] = ()
    imported: AssetSpec | None = None
    network_seeds: Sequence[int] = ()
    labels: Unit | None = None

    @property
    def facts(self) -> dict[str, Any]:
        facts = {
            "dataset": _plain(self.source),
            "method": _plain(self.method),
            "matching_network": _plain(self.matching_network),
            "images_per_class": self.images_per_class,
        }
        return facts if self.imported is None else facts | group_facts("imported", self.imported)


def _imported_set(
    spec: ExperimentSpec, source: DatasetSpec, asset: AssetSpec, facts: Mapping[str, Any]
) -> _TrainingSet:
    whole = source.model_copy(update={"subset_per_class": None, "test_subset_per_class": None})
    unit = make_unit("imported-sets", ImportedSetBody(dataset=whole, imported=asset))
    return _TrainingSet(
        source.model_copy(update={"subset_per_class": None}),
        images_per_class=facts["images_per_class"],
        distilled={spec.seeds[0]: unit},
        imported=asset,
        network_seeds=spec.network_seeds or spec.seeds,
        labels=imported_labels_of(spec, asset, facts, UnitId(unit.id)),
    )


def _training_sets(
    spec: ExperimentSpec, source: DatasetSpec, brought: Brought
) -> list[_TrainingSet]:
    sets = []
    tags_of = {method.name: DISTILLATION.get(method.name).tags for method in spec.methods}
    if spec.whole_set or any(WHOLE in tags for tags in tags_of.values()):
        sets.append(_TrainingSet(source))
    for method in spec.methods:
        tags = tags_of[method.name]
        if WHOLE in tags:
            continue
        network = None if NETWORK_FREE in tags else spec.matching_network
        experts = experts_of(source, method, network)
        teachers = [teacher_of(spec, source)] if ASKS_TEACHER in tags else []
        for images_per_class in spec.images_per_class:
            prototypes = {
                seed: prototypes_of(source, method, images_per_class, seed) for seed in spec.seeds
            }
            needed = {
                seed: [*experts, *teachers, *([first] if first else [])]
                for seed, first in prototypes.items()
            }
            distilled = {
                seed: make_unit(
                    "synthesis",
                    DistilledSetBody(
                        dataset=source,
                        method=method,
                        network=network,
                        images_per_class=images_per_class,
                        seed=seed,
                        experts=tuple(expert.id for expert in experts),
                        teacher=teachers[0].id if teachers else None,
                        prototypes=first.id if first else None,
                    ),
                    plugins=[(DISTILLATION, method), (MODELS, network)],
                    needs=[UnitId(unit.id) for unit in needed[seed]],
                )
                for seed, first in prototypes.items()
            }
            before = [unit for units in needed.values() for unit in units]
            sets.append(_TrainingSet(source, method, network, images_per_class, distilled, before))
    imported = brought.of(SETS, spec.imported, source)
    return [*sets, *(_imported_set(spec, source, asset, facts) for asset, facts in imported)]


def _narrowed(
    spec: ExperimentSpec, training_set: _TrainingSet, network: PluginRef
) -> ExperimentSpec:
    """The part of the grid that one training set and one network are."""
    method, imported = training_set.method, training_set.imported
    size = training_set.images_per_class
    return spec.model_copy(
        update={
            "datasets": (training_set.source,),
            "methods": (method,) if method else (),
            "imported": (imported,) if imported else (),
            "images_per_class": () if size is None else (size,),
            "whole_set": method is None and imported is None,
            "networks": (network,),
        }
    )


def _add_ranking(builder: _Builder, spec: ExperimentSpec, brought: Brought) -> None:
    """The references of a distilled set, and their comparison with it."""
    (source,) = spec.datasets
    groups: dict[str, GroupId] = {}
    for role, reference in references(spec).items():
        (training_set,) = _training_sets(reference, source, brought)
        groups[role.value] = _add_networks(builder, reference, training_set)
    comparison = Comparison(RANKING, groups)
    builder.comparisons[comparison.comparison_id] = comparison


def _plain(model: BaseModel | None) -> Any:
    return None if model is None else json.loads(model.model_dump_json())


def _add_networks(builder: _Builder, spec: ExperimentSpec, training_set: _TrainingSet) -> GroupId:
    """The networks of `spec`, which has one, on a training set, and their attack cells."""
    source = training_set.source
    (network,) = spec.networks
    test_set = source.model_copy(update={"subset_per_class": None})
    facts = {
        **training_set.facts,
        "network": _plain(network),
        "protocol": _plain(spec.protocol),
        "test_set": _plain(test_set),
        # Networks made before and after a change of a plug-in's output are never averaged.
        "semantics": semantics_of(
            [
                (DISTILLATION, training_set.method),
                (MODELS, training_set.matching_network),
                (MODELS, network),
                (PROTOCOLS, spec.protocol),
            ]
        )
        | semantics_of_tasks("networks"),
    }
    if training_set.labels is None and asks_teacher(training_set.method, spec.protocol):
        facts["teacher"] = _plain(spec.teacher)
        brought = spec.teacher_weights
        which = "teacher_protocol" if brought is None else "teacher_weights"
        facts[which] = _plain(brought or spec.teacher_protocol)
        facts["semantics"] |= semantics_of_tasks("teachers", "soft-labels") | semantics_of(
            [(MODELS, spec.teacher), (PROTOCOLS, None if brought else spec.teacher_protocol)]
        )
    if training_set.labels is not None:
        # The same images may come again with other labels.
        facts["labels"] = training_set.labels.body["labels"]
    group = group_id_of(facts)
    builder.groups[group] = facts
    for unit in training_set.prerequisites:
        builder.add(unit)
    trained_on: list[tuple[str | DatasetSpec, list[UnitId], Sequence[int]]] = [
        (unit.id, [builder.add(unit)], training_set.network_seeds or spec.network_seeds or (seed,))
        for seed, unit in training_set.distilled.items()
    ] or [(source, [], spec.network_seeds or spec.seeds)]
    for training, needs, seeds in trained_on:
        labels = training_set.labels or soft_labels_of(
            spec, training_set.source, needs[0] if needs else None, seed=seeds[0]
        )
        if labels is not None:
            if training_set.labels is None:
                builder.add(teacher_of(spec, training_set.source))
            needs = [*needs, builder.add(labels)]
        for seed in seeds:
            victim = make_unit(
                "networks",
                NetworkBody(
                    training_set=training,
                    test_set=test_set,
                    network=network,
                    protocol=spec.protocol,
                    seed=seed,
                    labels=labels.id if labels else None,
                ),
                plugins=[(MODELS, network), (PROTOCOLS, spec.protocol)],
                needs=needs,
                group=group,
            )
            victim_id = builder.add(victim)
            _add_cells(builder, spec, victim_id, test_set, seed, group)
    return group


def _add_imported_network(
    builder: _Builder,
    spec: ExperimentSpec,
    source: DatasetSpec,
    asset: AssetSpec,
    facts: Mapping[str, Any],
) -> None:
    """A network that somebody brought, and its attack cells."""
    test_set = source.model_copy(update={"subset_per_class": None})
    network = MODELS.canonical(PluginRef.model_validate(facts["network"]))
    about = {
        "dataset": _plain(test_set),
        "matching_network": None,
        "images_per_class": None,
        "network": _plain(network),
        "protocol": {"name": "as-brought", "params": {}},
        "test_set": _plain(test_set),
        "semantics": semantics_of([(MODELS, network)]) | semantics_of_tasks("imported-networks"),
        **group_facts("weights", asset),
    }
    group = group_id_of(about)
    builder.groups[group] = about
    victim = builder.add(
        make_unit(
            "imported-networks",
            ImportedNetworkBody(test_set=test_set, network=network, weights=asset),
            plugins=[(MODELS, network)],
            group=group,
        )
    )
    # One cell an attack, the same in all experiments: cells of one victim that differ in seeds only
    # are one line of results.
    _add_cells(builder, spec, victim, test_set, 0, group)


def _add_cells(
    builder: _Builder,
    spec: ExperimentSpec,
    victim: UnitId,
    test_set: DatasetSpec,
    seed: int,
    group: GroupId,
) -> None:
    for grid in spec.attacks:
        ref = PluginRef(name=grid.name, params=grid.params)
        for epsilon in grid.epsilons:
            cell = CellBody(
                victim=victim,
                attack=ref,
                threat=ThreatModel(norm=attack(grid.name).norm, epsilon=epsilon),
                test_set=test_set,
                seed=seed,
            )
            unit = make_unit(
                "white-box", cell, plugins=[(ATTACKS, ref)], needs=[victim], group=group
            )
            builder.add(unit)
