"""Tasks: what a job can be. Three kinds of job for ever; a task is one entry here and one file."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.spec import (
    CellBody,
    DistilledSetBody,
    ExpertsBody,
    ImportedLabelsBody,
    ImportedNetworkBody,
    ImportedSetBody,
    NetworkBody,
    PrototypesBody,
    SoftLabelsBody,
    TeacherBody,
)
from overproof.core.states import JobKind


@dataclass(frozen=True, kw_only=True)
class TaskInfo(PluginInfo):
    """A task.

    Attributes:
        kind: which workers do it.
        body: model of a unit's body.
        varies: fields of the body in which units of one job may differ; units that agree in all
            others go into one job.
        most_units: of one job, which bounds the memory and the checkpoints of a task whose units
            are large; None for as many as a message holds.
    """

    kind: JobKind
    body: type[BaseModel]
    varies: frozenset[str] = frozenset()
    most_units: int | None = None
    params: type[Params] = Params


TASKS: Registry = Registry("tasks")


def task(name: str) -> TaskInfo:
    """The task called `name`.

    Raises:
        UnknownPlugin: there is none.
    """
    info = TASKS.get(name)
    assert isinstance(info, TaskInfo)
    return info


for _info in (
    TaskInfo(
        name="synthesis",
        target="overproof.handlers.distill:SynthesisHandler",
        summary="distil one set by a method of the catalog",
        source="DD-RobustBench, section III",
        needs="overproof[ml]",
        kind=JobKind.DISTILL,
        body=DistilledSetBody,
    ),
    TaskInfo(
        name="imported-sets",
        target="overproof.handlers.imports:ImportedSetHandler",
        summary="take up a distilled set that somebody brought",
        source="docs/import.md",
        needs="overproof[ml]",
        kind=JobKind.DISTILL,
        body=ImportedSetBody,
    ),
    TaskInfo(
        name="imported-labels",
        target="overproof.handlers.imports:ImportedLabelsHandler",
        summary="take up soft labels of views that somebody brought",
        source="docs/import.md",
        needs="overproof[ml]",
        kind=JobKind.DISTILL,
        body=ImportedLabelsBody,
    ),
    TaskInfo(
        name="imported-networks",
        target="overproof.handlers.imports:ImportedNetworkHandler",
        summary="take up a network that somebody brought and measure its clean accuracy",
        source="docs/import.md",
        needs="overproof[ml]",
        kind=JobKind.TRAIN,
        body=ImportedNetworkBody,
    ),
    TaskInfo(
        name="networks",
        target="overproof.handlers.train:NetworksHandler",
        summary="train the networks of several seeds on one set and measure clean accuracy",
        source="DD-RobustBench, section III",
        needs="overproof[ml]",
        kind=JobKind.TRAIN,
        body=NetworkBody,
        varies=frozenset({"seed"}),
    ),
    TaskInfo(
        name="experts",
        target="overproof.handlers.experts:ExpertsHandler",
        summary="train networks on the whole set and keep their parameters after every epoch",
        source="Cazenavette et al., arXiv:2203.11932; mtt-distillation, buffer.py",
        needs="overproof[ml]",
        kind=JobKind.TRAIN,
        body=ExpertsBody,
        varies=frozenset({"seed"}),
        most_units=10,
    ),
    TaskInfo(
        name="teachers",
        target="overproof.handlers.teachers:TeachersHandler",
        summary="train networks on the whole set that label images and are inverted",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L, squeeze_cifar.py",
        needs="overproof[ml]",
        kind=JobKind.TRAIN,
        body=TeacherBody,
        varies=frozenset({"seed"}),
    ),
    TaskInfo(
        name="soft-labels",
        target="overproof.handlers.soft_labels:SoftLabelsHandler",
        summary="let a teacher label views of a set",
        source="Shen & Xing, arXiv:2112.01528; VILA-Lab/SRe2L, relabel",
        needs="overproof[ml]",
        kind=JobKind.DISTILL,
        body=SoftLabelsBody,
    ),
    TaskInfo(
        name="prototypes",
        target="overproof.handlers.prototypes:PrototypesHandler",
        summary="encode the training images and cluster the latents of each class",
        source="Su et al., arXiv:2407.15138; suduo94/D4M, gen_prototype.py",
        needs="overproof[ml]",
        kind=JobKind.DISTILL,
        body=PrototypesBody,
        varies=frozenset({"images_per_class"}),
    ),
    TaskInfo(
        name="white-box",
        target="overproof.handlers.attack:WhiteBoxHandler",
        summary="attack one network in several cells",
        source="DD-RobustBench, section III",
        needs="overproof[ml]",
        kind=JobKind.ATTACK,
        body=CellBody,
        varies=frozenset({"attack", "threat", "seed"}),
    ),
):
    TASKS.add(_info)
