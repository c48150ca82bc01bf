"""What is asked for: an experiment as a person writes it, and the units that it comes down to.

An `ExperimentSpec` is a grid over data sets, methods, networks, attacks and seeds. The planner
turns it into `Unit`s, each with a typed body below, and batches units into `JobSpec`s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from overproof.core.faults import faults_of
from overproof.core.ids import JOB_ID_PATTERN, UNIT_ID_PATTERN, GroupId, JobId, UnitId, job_id_of
from overproof.core.states import JobKind
from overproof.core.threat import Epsilon, ThreatModel
from overproof.errors import InvalidSpec

MAX_SPEC_BYTES = 1_000_000

Scalar = bool | int | float | str | None
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PluginRef(_Frozen):
    """A plug-in by name with the parameters that differ from its defaults.

    Written as a bare name (`dm`) or as `{name: dm, params: {iterations: 500}}`.
    """

    name: Name
    params: Mapping[str, Scalar] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class DatasetSpec(_Frozen):
    """A data set: its name, the version of its bytes, and how much of it is used.

    `version` is the hash under which it was added to the store, or `bundled-N`; the planner
    fills it in. `subset_per_class` takes the first so many training images of every class.
    """

    name: Name
    version: str = ""
    subset_per_class: Annotated[int, Field(ge=1)] | None = None
    test_subset_per_class: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class AssetSpec(_Frozen):
    """A distilled set or weights that somebody brought: the name, and the hash of the bytes.

    The planner fills `version` in with the newest one.
    """

    name: Name
    version: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


# ---- bodies of units -------------------------------------------------------------------------


class _Grown(_Frozen):
    """A body with fields that came later: left out at their defaults, so that ids stay."""

    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {
            name: value
            for name, value in plain.items()
            if name not in self.later or getattr(self, name) != fields[name].default
        }


class DistilledSetBody(_Grown):
    """One distilled set: task `synthesis` of kind distill.

    `network` is what the method matches on; None for methods that need none, so that their sets
    are shared by experiments with different networks. `experts` are the units whose trajectories
    the method follows; empty for methods that follow none. `teacher` is the unit of the network
    that the method asks; None for methods that ask none. `prototypes` is the unit of those that the
    method begins with; None for methods that begin with none.
    """

    later = frozenset({"experts", "teacher", "prototypes"})

    dataset: DatasetSpec
    method: PluginRef
    network: PluginRef | None
    images_per_class: Annotated[int, Field(ge=1)]
    seed: Seed
    experts: tuple[Annotated[str, Field(pattern=UNIT_ID_PATTERN)], ...] = ()
    teacher: Annotated[str, Field(pattern=UNIT_ID_PATTERN)] | None = None
    prototypes: Annotated[str, Field(pattern=UNIT_ID_PATTERN)] | None = None


class PrototypesBody(_Frozen):
    """Centres of the latents of each class: task `prototypes` of kind distill.

    Latents are those of a diffusion model's autoencoder at `weights`, or pixels without any;
    `revision`, `resolution` and `expand` as for the method that begins with them.
    """

    dataset: DatasetSpec
    weights: str | None
    revision: str | None
    resolution: Annotated[int, Field(ge=8)]
    expand: Annotated[int, Field(ge=1)]
    images_per_class: Annotated[int, Field(ge=1)]
    seed: Seed


class ExpertsBody(_Grown):
    """The trajectory of one expert: task `experts` of kind train.

    A network trained on the whole set by plain SGD at a constant learning rate, whose parameters
    are kept at the start and after each epoch. `strategy` is that of its augmentation; `zca` says
    whether it sees whitened images.
    """

    later = frozenset({"zca"})

    dataset: DatasetSpec
    network: PluginRef
    epochs: Annotated[int, Field(ge=1)]
    learning_rate: Annotated[float, Field(gt=0)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=1)]
    strategy: Name
    seed: Seed
    zca: bool = False


class TeacherBody(_Frozen):
    """A network that labels images or is inverted: task `teachers` of kind train.

    Trained on the whole training set by a protocol.
    """

    dataset: DatasetSpec
    network: PluginRef
    protocol: PluginRef
    seed: Seed


class SoftLabelsBody(_Frozen):
    """What a teacher says of a set: task `soft-labels` of kind distill.

    `training_set` is the id of a distilled set, or `dataset` whole; `dataset` is what that was made
    from. The other fields say what views of the images are labelled, see `ml.train.soft_labels`.
    """

    training_set: Annotated[str, Field(pattern=UNIT_ID_PATTERN)] | None
    dataset: DatasetSpec
    teacher: Annotated[str, Field(pattern=UNIT_ID_PATTERN)]
    teacher_mode: Literal["eval", "train"]
    epochs: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    smallest_crop: Annotated[float, Field(gt=0, le=1)]
    shift: Annotated[int, Field(ge=0)]
    mirrors: bool
    mixing: Literal["none", "cutmix", "mixup"]
    tiles: Annotated[int, Field(ge=1)]
    seed: Seed


class NetworkBody(_Grown):
    """One trained network: task `networks` of kind train.

    `training_set` is the id of a distilled set, or a data set to be used whole. `test_set` is
    where clean accuracy is measured. `labels` is the unit with soft labels of the training set;
    None where the protocol wants none.
    """

    later = frozenset({"labels"})

    training_set: Annotated[str, Field(pattern=UNIT_ID_PATTERN)] | DatasetSpec
    test_set: DatasetSpec
    network: PluginRef
    protocol: PluginRef
    seed: Seed
    labels: Annotated[str, Field(pattern=UNIT_ID_PATTERN)] | None = None


class ImportedSetBody(_Frozen):
    """One distilled set that somebody brought: task `imported-sets` of kind distill.

    `dataset` is what it was distilled from; the set must fit its images and classes.
    """

    dataset: DatasetSpec
    imported: AssetSpec


class ImportedLabelsBody(_Frozen):
    """Soft labels of views of a set that somebody brought: task `imported-labels`, kind distill."""

    training_set: Annotated[str, Field(pattern=UNIT_ID_PATTERN)]
    labels: AssetSpec


class ImportedNetworkBody(_Frozen):
    """One trained network that somebody brought: task `imported-networks` of kind train.

    `training_set` is always null: nobody here knows what the network was trained on.
    """

    training_set: None = None
    test_set: DatasetSpec
    network: PluginRef
    weights: AssetSpec


class CellBody(_Frozen):
    """One attack at one budget on one victim: task `white-box` of kind attack."""

    victim: Annotated[str, Field(pattern=UNIT_ID_PATTERN)]
    attack: PluginRef
    threat: ThreatModel
    test_set: DatasetSpec
    seed: Seed


# ---- units and jobs --------------------------------------------------------------------------


class Unit(_Frozen):
    """The thing that has an id: one distilled set, one network, one attack cell of one victim.

    Attributes:
        id: hash of kind, task, body and the semantics of the plug-ins in it.
        body: the typed body as plain JSON, all defaults filled in.
        needs: units whose artifacts it reads.
        group: units that differ only in seeds share it; not part of the id.
    """

    id: Annotated[str, Field(pattern=UNIT_ID_PATTERN)]
    kind: JobKind
    task: Name
    body: Mapping[str, Any]
    needs: tuple[UnitId, ...] = ()
    group: GroupId | None = None


class JobSpec(_Frozen):
    """A batch of units of one task that are cheaper together; published whole on the bus."""

    id: Annotated[str, Field(pattern=JOB_ID_PATTERN)]
    kind: JobKind
    task: Name
    units: Annotated[tuple[Unit, ...], Field(min_length=1)]

    @classmethod
    def of(cls, units: tuple[Unit, ...]) -> JobSpec:
        """The job that makes `units`, which are of one kind and task."""
        first = units[0]
        job_id = job_id_of(UnitId(unit.id) for unit in units)
        return cls(id=job_id, kind=first.kind, task=first.task, units=units)

    @property
    def job_id(self) -> JobId:
        """The id with its type."""
        return JobId(self.id)

    @property
    def inputs(self) -> tuple[UnitId, ...]:
        """Units made by other jobs that this one reads, sorted."""
        own = {unit.id for unit in self.units}
        return tuple(sorted({need for unit in self.units for need in unit.needs} - own))


# ---- the experiment as a person writes it ----------------------------------------------------


class AttackGrid(_Frozen):
    """An attack at several budgets; its norm follows from the attack."""

    name: Name
    epsilons: Annotated[tuple[Epsilon, ...], Field(min_length=1)]
    params: Mapping[str, Scalar] = Field(default_factory=dict)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int | Mapping) else value


Datasets = Annotated[tuple[DatasetSpec, ...], BeforeValidator(_as_list), Field(min_length=1)]
Plugins = Annotated[tuple[PluginRef, ...], BeforeValidator(_as_list)]
Assets = Annotated[tuple[AssetSpec, ...], BeforeValidator(_as_list)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], BeforeValidator(_as_list)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_as_list), Field(min_length=1)]


class RankingSpec(_Frozen):
    """How distilled sets are ranked by what they teach; written `ranking: true` for the defaults.

    Attributes:
        hard: protocol of the distilled sets with hard labels.
        whole: protocol of the whole set with hard labels.
        augmentation: also train without augmentation, for the augmentation-robust score.
    """

    hard: PluginRef = PluginRef(name="ddk")
    whole: PluginRef = PluginRef(
        name="ddk", params={"epochs": 200, "step_epochs": 100, "batch_size": 512}
    )
    augmentation: bool = False


def _as_ranking(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class ExceptionSpec(_Frozen):
    """What some parts of the grid do otherwise; the fields that are left out stay as they are.

    Attributes:
        datasets: names of the data sets that it is for; all when empty.
        methods: names of the methods that it is for; all, and whole and imported sets, when empty.
        networks, matching_network, protocol: in the place of those of the experiment. The matching
            network follows the first of `networks`, unless one is named here or there.
    """

    datasets: Annotated[tuple[Name, ...], BeforeValidator(_as_list)] = ()
    methods: Annotated[tuple[Name, ...], BeforeValidator(_as_list)] = ()
    networks: Plugins = ()
    matching_network: PluginRef | None = None
    protocol: PluginRef | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if not self.datasets and not self.methods:
            raise ValueError("an exception says for what; name datasets or methods")
        if not self.networks and self.matching_network is None and self.protocol is None:
            raise ValueError("an exception changes something; name networks or a protocol")
        return self


class ExperimentSpec(_Frozen):
    """A grid: every method at every size on every data set, trained and attacked.

    Attributes:
        name: shown in lists; need not be unique.
        datasets: what is distilled and tested on.
        methods: distillation methods; may be empty when only the whole set is trained.
        images_per_class: sizes of the distilled sets.
        whole_set: also train on the whole training set, as the upper reference.
        imported: distilled sets that were brought by `overproof import`; each belongs to the data
            set that it was imported for. There is one of each, whatever `seeds` says; a network is
            trained on it for every one of `network_seeds`, or of `seeds`.
        weights: networks that were brought by `overproof weights add`, attacked as they are.
        matching_network: network that methods match on; the first of `networks` by default.
        networks: networks that are trained on every set and attacked.
        protocol: how networks are trained.
        teacher: network that labels images and that methods invert; the matching network with
            batch norm by default.
        teacher_protocol: how it is trained.
        teacher_weights: a network that was brought by `overproof weights add` and serves as the
            teacher, in the place of one that is trained.
        exceptions: parts of the grid with other networks or another protocol; of several that
            fit, later ones win.
        ranking: also train what distilled sets are ranked against; those of `random` are not.
        attacks: white-box attacks with their budgets.
        suites: names of suites, whose attacks are run besides `attacks`.
        seeds: one distilled set for each.
        network_seeds: networks trained on each distilled set; by default one network for each
            set, with the set's own seed.
        priority: larger goes first among waiting jobs.
        quota: how many jobs of this experiment may run at once.
    """

    name: Name
    datasets: Datasets
    methods: Plugins = ()
    images_per_class: Counts = ()
    whole_set: bool = False
    imported: Assets = ()
    weights: Assets = ()
    matching_network: PluginRef | None = None
    networks: Plugins = ()
    protocol: PluginRef = PluginRef(name="dsa")
    teacher: PluginRef | None = None
    teacher_protocol: PluginRef = PluginRef(name="squeeze")
    teacher_weights: AssetSpec | None = None
    exceptions: tuple[ExceptionSpec, ...] = ()
    ranking: Annotated[RankingSpec | None, BeforeValidator(_as_ranking)] = None
    attacks: tuple[AttackGrid, ...] = ()
    suites: Annotated[tuple[Name, ...], BeforeValidator(_as_list)] = ()
    seeds: Seeds = (0,)
    network_seeds: Annotated[tuple[Seed, ...], BeforeValidator(_as_list)] = ()
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    quota: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        if self.methods and not self.images_per_class:
            raise ValueError("methods need images_per_class; write e.g. images_per_class: [1, 10]")
        trained = bool(self.methods or self.whole_set or self.imported)
        if not trained and not self.weights:
            raise ValueError("nothing to train on; name methods or set whole_set: true")
        if trained and not self.networks:
            raise ValueError("no network to train; write e.g. networks: convnet")
        return self

    @classmethod
    def parse(cls, text: str | bytes, source: str = "spec") -> ExperimentSpec:
        """Read a spec from YAML or JSON.

        Raises:
            InvalidSpec: not YAML, too large, or with faults; every fault is listed.
        """
        if len(text) > MAX_SPEC_BYTES:
            raise InvalidSpec(
                [f"(top level): {len(text)} bytes; a spec has at most {MAX_SPEC_BYTES}"], source
            )
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            where = " ".join(str(error).split())
            raise InvalidSpec([f"(top level): neither YAML nor JSON: {where}"], source) from None
        if not isinstance(value, dict):
            kind = "null" if value is None else type(value).__name__
            raise InvalidSpec([f"(top level): a mapping is needed, not {kind}"], source)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InvalidSpec(faults_of(error, model=cls), source) from None

    @classmethod
    def read(cls, path: Path) -> ExperimentSpec:
        """Read a spec from a file.

        Raises:
            InvalidSpec: as `parse`, or the file cannot be read.
        """
        try:
            text = path.read_bytes()
        except OSError as error:
            raise InvalidSpec([f"(top level): {error.strerror}"], str(path)) from None
        return cls.parse(text, str(path))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for storage."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        return plain
