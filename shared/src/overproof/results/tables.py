"""The tables, and nothing about how they are used. Times are seconds since the epoch.

Who writes what: submissions insert `jobs`, `units` and the interest in them; whoever holds a
job's token moves it; `metric_values` belongs to the aggregator alone.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

from overproof.core.states import JobKind, JobState, UnitState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, values: type[JobKind] | type[JobState] | type[UnitState]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


experiments = Table(
    "experiments",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("quota", Integer),
    Column("cancelled", Boolean, nullable=False, server_default=false()),
    Column("created_at", Double, nullable=False, index=True),
)

groups = Table(
    "groups",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("body", JSON, nullable=False),
)

# Numbers over several groups; stale when the numbers of one of them were computed anew.
comparisons = Table(
    "comparisons",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("kind", String(40), nullable=False),
    Column("body", JSON, nullable=False),
    Column("stale", Boolean, nullable=False, server_default=true()),
)

Index(
    "ix_comparisons_stale",
    comparisons.c.id,
    sqlite_where=text("stale"),
    postgresql_where=text("stale"),
)

comparison_groups = Table(
    "comparison_groups",
    metadata,
    Column("comparison_id", ForeignKey("comparisons.id"), primary_key=True),
    Column("group_id", ForeignKey("groups.id"), primary_key=True, index=True),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("task", String(100), nullable=False),
    Column("spec", Text, nullable=False),  # JobSpec as JSON; text, so that it is parsed once only
    Column("label", Text, nullable=False),
    Column("unit_count", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    # Raised by every claim and by every way out of a terminal state: the fence of a claim.
    Column("token", Integer, nullable=False, server_default=text("0")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("priority", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("owner", Text),
    Column("lease_until", Double),
    Column("progress", JSON),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    # Whether the dead letter of its failure was written; false again when it leaves FAILED.
    Column("buried", Boolean, nullable=False, server_default=false()),
    CheckConstraint(_one_of("kind", JobKind), name="kind"),
    CheckConstraint(_one_of("state", JobState), name="state"),
    CheckConstraint("state <> 'RUNNING' OR lease_until IS NOT NULL", name="lease"),
)

# The order in which jobs are claimed, those that run, and those that may be unlocked. Finished jobs
# are in none, so all stay small; no index on the state alone, or SQLite prefers it to the key.
_QUEUED, _RUNNING = text("state IN ('READY', 'RUNNING')"), text("state = 'RUNNING'")
_WAITING = text("state = 'WAITING'")
Index(
    "ix_jobs_queue",
    jobs.c.kind,
    jobs.c.priority.desc(),
    jobs.c.due_at,
    sqlite_where=_QUEUED,
    postgresql_where=_QUEUED,
)
Index("ix_jobs_running", jobs.c.lease_until, sqlite_where=_RUNNING, postgresql_where=_RUNNING)
Index("ix_jobs_waiting", jobs.c.created_at, sqlite_where=_WAITING, postgresql_where=_WAITING)
_UNBURIED = text("state = 'FAILED' AND NOT buried")
Index("ix_jobs_unburied", jobs.c.ended_at, sqlite_where=_UNBURIED, postgresql_where=_UNBURIED)
Index("ix_jobs_created_at", jobs.c.created_at)

units = Table(
    "units",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("task", String(100), nullable=False),
    Column("body", JSON, nullable=False),
    Column("group_id", ForeignKey("groups.id"), index=True),
    # The one job that carries it, for ever.
    Column("job_id", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("state", String(10), nullable=False),
    Column("token", Integer, nullable=False, server_default=text("0")),
    Column("result", JSON, nullable=False),
    Column("aggregated", Boolean, nullable=False, server_default=false()),
    CheckConstraint(_one_of("state", UnitState), name="state"),
)

_TO_AGGREGATE = text("state = 'DONE' AND NOT aggregated")
Index(
    "ix_units_to_aggregate",
    units.c.group_id,
    sqlite_where=_TO_AGGREGATE,
    postgresql_where=_TO_AGGREGATE,
)

job_inputs = Table(
    "job_inputs",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("unit_id", ForeignKey("units.id"), primary_key=True, index=True),
)

experiment_units = Table(
    "experiment_units",
    metadata,
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True),
    Column("unit_id", ForeignKey("units.id"), primary_key=True, index=True),
)

# Interest: a job is wanted while one row of it is not withdrawn.
experiment_jobs = Table(
    "experiment_jobs",
    metadata,
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), primary_key=True, index=True),
    Column("withdrawn", Boolean, nullable=False, server_default=false()),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("token", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", String(10)),
    Column("failure", JSON(none_as_null=True)),
    Column("facts", JSON, nullable=False),
)

metric_values = Table(
    "metric_values",
    metadata,
    Column("subject", String(40), primary_key=True),
    Column("metric", String(100), primary_key=True),
    Column("slice", Text, primary_key=True),
    # What it is computed and replaced with: a group, or a comparison of groups.
    Column("group_id", ForeignKey("groups.id"), index=True),
    Column("comparison_id", ForeignKey("comparisons.id"), index=True),
    Column("scope", String(20), nullable=False),
    Column("value", Double),
    Column("unit", String(40), nullable=False),
    Column("present", Integer, nullable=False),
    Column("expected", Integer, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("reason", Text),
    CheckConstraint("(group_id IS NULL) <> (comparison_id IS NULL)", name="owner"),
)

kind_controls = Table(
    "kind_controls",
    metadata,
    Column("kind", String(10), primary_key=True),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("failures_in_a_row", Integer, nullable=False, server_default=text("0")),
    Column("breaker_open", Boolean, nullable=False, server_default=false()),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("topic", String(100), nullable=False),
    Column("reason", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("job_id", Text),  # as the message said, so not a key
    Column("received_at", Double, nullable=False),
    Column("replayed_at", Double),
    UniqueConstraint("topic", "sha256"),
)

assets = Table(
    "assets",
    metadata,
    Column("kind", String(20), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("version", String(64), primary_key=True),
    Column("ref", JSON, nullable=False),
    Column("facts", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("owner", String(200), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("job_id", Text),
)
