"""Units that distilled sets and networks need before them, shared by all that ask for the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overproof.catalog.diffusion import DiffusionParams
from overproof.catalog.distillation import ASKS_TEACHER, DISTILLATION
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS, teaching_of
from overproof.catalog.teaching import ReplayParams
from overproof.catalog.trajectories import ExpertParams
from overproof.core.ids import UnitId
from overproof.core.spec import (
    AssetSpec,
    DatasetSpec,
    ExperimentSpec,
    ExpertsBody,
    ImportedLabelsBody,
    ImportedNetworkBody,
    PluginRef,
    PrototypesBody,
    SoftLabelsBody,
    TeacherBody,
    Unit,
)
from overproof.experiments.units import make_unit


def experts_of(source: DatasetSpec, method: PluginRef, network: PluginRef | None) -> list[Unit]:
    """The experts whose trajectories `method` follows; shared by all sets that ask for the same.

    They know nothing of the method, the images per class and the seed of the set, nor of a test
    set.
    """
    params = DISTILLATION.resolve(method)
    if not isinstance(params, ExpertParams) or network is None:
        return []
    return [
        make_unit(
            "experts",
            ExpertsBody(
                dataset=source.model_copy(update={"test_subset_per_class": None}),
                network=network,
                epochs=params.expert_epochs,
                learning_rate=params.expert_learning_rate,
                momentum=params.expert_momentum,
                weight_decay=params.expert_weight_decay,
                batch_size=params.expert_batch,
                strategy=params.strategy,
                seed=seed,
                zca=params.zca,
            ),
            plugins=[(MODELS, network)],
        )
        for seed in range(params.experts)
    ]


def prototypes_of(
    source: DatasetSpec, method: PluginRef, images_per_class: int, seed: int
) -> Unit | None:
    """The prototypes that `method` begins with; None where it begins with none.

    They know nothing of how images are made from them.
    """
    params = DISTILLATION.resolve(method)
    if not isinstance(params, DiffusionParams):
        return None
    body = PrototypesBody(
        dataset=source.model_copy(update={"test_subset_per_class": None}),
        weights=params.weights,
        revision=params.revision,
        # Pixels are clustered as they are.
        resolution=params.resolution if params.weights else 8,
        expand=params.expand,
        images_per_class=images_per_class,
        seed=seed,
    )
    return make_unit("prototypes", body)


def asks_teacher(method: PluginRef | None, protocol: PluginRef) -> bool:
    """Whether the images come from a teacher, or the labels that networks are trained with."""
    if method is not None and ASKS_TEACHER in DISTILLATION.get(method.name).tags:
        return True
    return teaching_of(protocol) is not None


def teacher_of(spec: ExperimentSpec, source: DatasetSpec) -> Unit:
    """The one teacher of a data set, whatever is made with it; `spec` is resolved."""
    assert spec.teacher is not None
    if spec.teacher_weights is not None:
        whole = source.model_copy(update={"subset_per_class": None, "test_subset_per_class": None})
        return make_unit(
            "imported-networks",
            ImportedNetworkBody(test_set=whole, network=spec.teacher, weights=spec.teacher_weights),
            plugins=[(MODELS, spec.teacher)],
        )
    return make_unit(
        "teachers",
        TeacherBody(
            dataset=source.model_copy(update={"test_subset_per_class": None}),
            network=spec.teacher,
            protocol=spec.teacher_protocol,
            seed=0,
        ),
        plugins=[(MODELS, spec.teacher), (PROTOCOLS, spec.teacher_protocol)],
    )


def soft_labels_of(
    spec: ExperimentSpec, source: DatasetSpec, distilled: UnitId | None, seed: int
) -> Unit | None:
    """The labels that the protocol wants of a training set; None where it wants none.

    Args:
        spec: resolved.
        source: what the set was made from.
        distilled: the set, None for all of `source`.
        seed: of the views.
    """
    params = teaching_of(spec.protocol)
    if params is None:
        return None
    replays = params if isinstance(params, ReplayParams) else None
    teacher = UnitId(teacher_of(spec, source).id)
    body = SoftLabelsBody(
        training_set=distilled,
        dataset=source.model_copy(update={"test_subset_per_class": None}),
        teacher=teacher,
        teacher_mode=params.teacher_mode,
        epochs=replays.epochs if replays else 1,
        batch_size=params.batch_size,
        smallest_crop=replays.smallest_crop if replays else 1.0,
        shift=replays.shift if replays else 0,
        mirrors=replays is not None and replays.augments,
        mixing=replays.mixing if replays else "none",
        tiles=replays.shuffled_tiles if replays else 1,
        seed=seed,
    )
    return make_unit("soft-labels", body, needs=[teacher, *([distilled] if distilled else [])])


def imported_labels_of(
    spec: ExperimentSpec, asset: AssetSpec, facts: Mapping[str, Any], imported: UnitId
) -> Unit | None:
    """The labels that came with an imported set; None without, or where the protocol replays none.

    Args:
        spec: resolved.
        asset: the set.
        facts: of the set.
        imported: the unit of the set.
    """
    version = facts.get("soft_labels")
    if version is None or not isinstance(PROTOCOLS.resolve(spec.protocol), ReplayParams):
        return None
    labels = AssetSpec(name=asset.name, version=version)
    body = ImportedLabelsBody(training_set=imported, labels=labels)
    return make_unit("imported-labels", body, needs=[imported])
