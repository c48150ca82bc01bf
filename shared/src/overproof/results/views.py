"""What the repository hands out and takes in: frozen values only, no ORM objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from overproof.core.failure import FailureReport
from overproof.core.ids import ComparisonId, ExperimentId, GroupId, JobId, UnitId, comparison_id_of
from overproof.core.refs import ArtifactRef
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState, UnitState

# ---- claims ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """The right to run a job until the lease ends; fenced by `token`.

    Attributes:
        attempt: 1 for the first; graceful hand-backs do not raise it, dead workers do.
        inputs: unit that the job reads → job whose manifest holds it.
    """

    job: JobSpec
    token: int
    attempt: int
    owner: str
    ttl_s: float
    inputs: Mapping[UnitId, JobId]

    @property
    def job_id(self) -> JobId:
        """Id of the claimed job."""
        return self.job.job_id


@dataclass(frozen=True)
class Progress:
    """How far a running job is; `scalars` are its latest numbers (loss, accuracy)."""

    step: int
    total: int
    scalars: Mapping[str, float] = field(default_factory=dict)


class Renewal(StrEnum):
    """Answer to a renewal."""

    HELD = "held"
    CANCEL = "cancel"  # still held, but nobody wants the job any more
    LOST = "lost"  # the token changed: somebody else holds it or it ended


class EndKind(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"
    RELEASED = "released"  # worker shuts down; the attempt does not count
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Outcome:
    """What `end` records.

    Attributes:
        results: for SUCCEEDED, every unit of the job → its small JSON result.
        failure: for FAILED and RETRY.
        retry_in_s: for RETRY, seconds until the job is due again.
        facts: device, versions and the like, stored with the attempt.
    """

    kind: EndKind
    results: Mapping[UnitId, Mapping[str, Any]] = field(default_factory=dict)
    failure: FailureReport | None = None
    retry_in_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """What `end` did: whether the token was still good, and which jobs became READY by it."""

    accepted: bool
    unlocked: tuple[JobSpec, ...] = ()


# ---- planning and submitting -----------------------------------------------------------------


@dataclass(frozen=True)
class UnitStatus:
    """What the database knows of a unit: its state and the job that carries it."""

    unit_id: UnitId
    state: UnitState
    job_id: JobId
    job_state: JobState


@dataclass(frozen=True)
class Submitted:
    """What a submission did.

    Attributes:
        ready: jobs that can start now, to be announced.
        created: how many jobs are new; `linked`: how many existed already.
        failed: linked jobs that are FAILED and were left so (submit with retry_failed).
    """

    experiment_id: ExperimentId
    ready: tuple[JobSpec, ...]
    created: int
    linked: int
    done_units: int
    failed: tuple[JobId, ...]


# ---- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExperimentView:
    """An experiment and how far it is."""

    experiment_id: ExperimentId
    name: str
    spec: Mapping[str, Any]
    priority: int
    cancelled: bool
    created_at: float
    jobs: Mapping[JobState, int]
    blocked: int  # WAITING jobs that need a unit of a FAILED or CANCELLED one

    @property
    def total(self) -> int:
        """Jobs of the experiment."""
        return sum(self.jobs.values())

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen by itself."""
        live = sum(count for state, count in self.jobs.items() if state.is_live)
        return self.cancelled or live - self.blocked <= 0


@dataclass(frozen=True)
class JobView:
    """A job as lists show it."""

    job_id: JobId
    kind: JobKind
    task: str
    state: JobState
    priority: int
    attempt: int
    token: int
    owner: str | None
    progress: Progress | None
    error: str | None
    blocked_by: str | None
    units: int
    label: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    due_at: float
    cancel_requested: bool


@dataclass(frozen=True)
class AttemptView:
    """One attempt at a job."""

    job_id: JobId
    token: int
    attempt: int
    owner: str
    started_at: float
    ended_at: float | None
    outcome: EndKind | None
    failure: FailureReport | None
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class UnitRow:
    """A unit with its outcome, as metrics read it."""

    unit_id: UnitId
    kind: JobKind
    task: str
    body: Mapping[str, Any]
    group: GroupId | None
    state: UnitState
    job_id: JobId
    token: int
    result: Mapping[str, Any]


class MetricScope(StrEnum):
    """Over what a metric is computed whole."""

    NETWORK = "network"
    DISTILLED_SET = "distilled-set"  # a group: the units that differ only in seeds
    COMPARISON = "comparison"  # of several groups, each in its role
    TRANSFER_MATRIX = "transfer-matrix"


@dataclass(frozen=True)
class MetricRow:
    """One number with its denominator and interval.

    Attributes:
        subject: unit id (network scope), group id or comparison id.
        slice: what it is restricted to, e.g. `pgd-linf[steps=10]@8/255:S2`; "" for all.
        value: None when undefined, then `reason` says why.
        low, high: 95 % interval over seeds, None where there is none.
        present, expected: how many of the units that belong to the number are in it.
        unit: `fraction`, `seconds`, …
    """

    scope: MetricScope
    subject: str
    metric: str
    slice: str
    value: float | None
    unit: str
    present: int
    expected: int
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class LeaderboardRow:
    """One group of networks with its metrics.

    Attributes:
        group: what the networks have in common, see `NetworkGroup` in experiments.planner:
            dataset, method, images_per_class, network, protocol (plain JSON).
        metrics: (metric, slice) → row.
    """

    group_id: GroupId
    group: Mapping[str, Any]
    metrics: Mapping[tuple[str, str], MetricRow]


@dataclass(frozen=True)
class Comparison:
    """Numbers over several groups.

    Attributes:
        kind: what is compared, e.g. `ranking`.
        groups: role → id of the group that has it.
    """

    kind: str
    groups: Mapping[str, GroupId]

    @property
    def comparison_id(self) -> ComparisonId:
        """The id that follows from kind and groups."""
        return comparison_id_of(self.kind, self.groups)


@dataclass(frozen=True)
class GroupUnits:
    """A group's body with its units, DONE ones and those still wanted, by id."""

    body: Mapping[str, Any]
    units: Sequence[UnitRow]


@dataclass(frozen=True)
class ComparisonRow:
    """A comparison with the bodies of its groups and its metrics.

    Attributes:
        bodies: role → body of the group.
        metrics: (metric, slice) → row.
    """

    comparison: Comparison
    bodies: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[tuple[str, str], MetricRow]


@dataclass(frozen=True)
class DeadLetter:
    """A message that nobody could use; its raw bytes lie in the artifact store."""

    dead_letter_id: int
    topic: str
    reason: str
    report: str  # at most 32 KiB
    sha256: str
    size_bytes: int
    job_id: str | None
    received_at: float
    replayed_at: float | None


@dataclass(frozen=True)
class Asset:
    """A data set or weights that a user added to the store."""

    kind: str  # datasets | weights
    name: str
    version: str  # SHA-256 of the packed bytes
    ref: ArtifactRef
    facts: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True)
class WorkerView:
    """A worker process that was seen lately."""

    owner: str
    kind: str
    seen_at: float
    job_id: JobId | None


@dataclass(frozen=True)
class KindStatus:
    """Whether claims of a kind are let through, and how much there is to do."""

    kind: JobKind
    paused: bool
    breaker_open: bool
    failures_in_a_row: int
    ready: int
    running: int
    wanted: int

    @property
    def is_held(self) -> bool:
        """Whether nothing of the kind starts until someone resumes it."""
        return self.paused or self.breaker_open
