"""Conditions on jobs, each written once: what may be claimed, what is wanted, what is blocked.

The view `jobs_wanted`, by which a cluster starts workers, is built from the same conditions as
the claim itself.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Subquery,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    null,
    or_,
    select,
)

from overproof.core.states import JobState, UnitState
from overproof.results.tables import (
    experiment_jobs,
    experiments,
    job_inputs,
    jobs,
    kind_controls,
    units,
)

_DEAD_ENDS = (JobState.FAILED.value, JobState.CANCELLED.value)


def is_queued(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether the job is READY or RUNNING, in the very words of the index `ix_jobs_queue`.

    A partial index serves only a query that repeats its condition, with the values written out.
    """
    states = (JobState.READY, JobState.RUNNING)
    return job.c.state.in_([literal(state.value, literal_execute=True) for state in states])


def is_waiting(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether the job is WAITING, in the very words of the index `ix_jobs_waiting`."""
    return job.c.state == literal(JobState.WAITING.value, literal_execute=True)


def is_running(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether the job is RUNNING, in the very words of the index `ix_jobs_running`."""
    return job.c.state == literal(JobState.RUNNING.value, literal_execute=True)


def is_failed(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether the job is FAILED, in the very words of the index `ix_jobs_unburied`."""
    return job.c.state == literal(JobState.FAILED.value, literal_execute=True)


def wanted(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether a live experiment wants the job."""
    interest = experiment_jobs.alias()
    return exists().where(interest.c.job_id == job.c.id, not_(interest.c.withdrawn))


def inputs_done(job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether every unit that the job reads is there."""
    missing = exists().where(
        job_inputs.c.job_id == job.c.id,
        units.c.id == job_inputs.c.unit_id,
        units.c.state != UnitState.DONE.value,
    )
    return not_(missing)


def expired(now: ColumnElement[float], job: FromClause = jobs) -> ColumnElement[bool]:
    """Whether the process that ran the job is taken for dead."""
    return and_(is_running(job), job.c.lease_until < now)


def claimable(
    now: ColumnElement[float], max_attempts: int, job: FromClause = jobs
) -> ColumnElement[bool]:
    """Whether a worker may take the job now.

    It is due, or its worker died and attempts are left; its kind is neither paused nor stopped by
    the breaker; and an experiment that wants it has room under its quota.
    """
    return and_(
        is_queued(job),
        or_(
            and_(job.c.state == JobState.READY.value, job.c.due_at <= now),
            and_(expired(now, job), job.c.attempt < max_attempts),
        ),
        _is_open(job.c.kind),
        _interest_with_room(now, job).exists(),
    )


@lru_cache(maxsize=8)  # building it takes longer than running it, and pollers ask often
def jobs_wanted(now: ColumnElement[float], max_attempts: int) -> Select[tuple[str, int]]:
    """(kind, wanted) for every kind: how many workers would have something to do.

    These are the jobs that run and those that may be claimed, no more of an experiment than its
    quota leaves room for. A job of several experiments counts for one of them.
    """
    job, room = jobs.alias(), _room(now)
    within = _interest_with_room(now, job)
    (experiment_id,) = within.selected_columns
    unlimited = within.where(experiment_id.not_in(select(room.c.experiment_id))).exists()
    first = within.with_only_columns(func.min(experiment_id)).scalar_subquery()
    found = (
        select(
            job.c.kind.label("kind"),
            case((unlimited, null()), else_=first).label("experiment_id"),
        )
        .where(claimable(now, max_attempts, job))
        .subquery()
    )
    counted = (
        select(found.c.kind, found.c.experiment_id, func.count().label("jobs"))
        .group_by(found.c.kind, found.c.experiment_id)
        .subquery()
    )
    started = (
        select(
            counted.c.kind,
            func.sum(case((room.c.room < counted.c.jobs, room.c.room), else_=counted.c.jobs)).label(
                "jobs"
            ),
        )
        .select_from(counted.outerjoin(room, room.c.experiment_id == counted.c.experiment_id))
        .group_by(counted.c.kind)
        .subquery()
    )
    running = (
        select(jobs.c.kind, func.count().label("jobs"))
        .where(is_running(), jobs.c.lease_until >= now)
        .group_by(jobs.c.kind)
        .subquery()
    )
    total = func.coalesce(started.c.jobs, 0) + func.coalesce(running.c.jobs, 0)
    return (
        select(kind_controls.c.kind, cast(total, Integer).label("wanted"))
        .select_from(
            kind_controls.outerjoin(started, started.c.kind == kind_controls.c.kind).outerjoin(
                running, running.c.kind == kind_controls.c.kind
            )
        )
        .order_by(kind_controls.c.kind)
    )


def blocked() -> CTE:
    """(job_id, cause) of all WAITING jobs that wait in vain, directly or through others.

    `cause` is the FAILED or CANCELLED job at the root; a job has one row for each.
    """
    carrier = jobs.alias("carrier")
    waiting = jobs.alias("waiting")
    direct = (
        select(waiting.c.id.label("job_id"), carrier.c.id.label("cause"))
        .join(job_inputs, job_inputs.c.job_id == waiting.c.id)
        .join(units, units.c.id == job_inputs.c.unit_id)
        .join(carrier, carrier.c.id == units.c.job_id)
        .where(is_waiting(waiting), carrier.c.state.in_(_DEAD_ENDS))
        .cte("blocked", recursive=True)
    )
    return direct.union(
        select(waiting.c.id, direct.c.cause)
        .join(job_inputs, job_inputs.c.job_id == waiting.c.id)
        .join(units, units.c.id == job_inputs.c.unit_id)
        .join(direct, direct.c.job_id == units.c.job_id)
        .where(is_waiting(waiting))
    )


def _is_open(kind: ColumnElement[str]) -> ColumnElement[bool]:
    return exists().where(
        kind_controls.c.kind == kind,
        not_(kind_controls.c.paused),
        not_(kind_controls.c.breaker_open),
    )


def _room(now: ColumnElement[float]) -> Subquery:
    """(experiment_id, room) of experiments with a quota: how many more of their jobs may run.

    A job whose lease ran out does not count, or a quota of one would keep it from being claimed
    again.
    """
    running = jobs.alias()
    alive = select(running.c.id).where(is_running(running), running.c.lease_until >= now)
    running_jobs = (
        select(experiment_jobs.c.experiment_id, func.count().label("jobs"))
        .where(experiment_jobs.c.job_id.in_(alive), not_(experiment_jobs.c.withdrawn))
        .group_by(experiment_jobs.c.experiment_id)
        .subquery()
    )
    room = experiments.c.quota - func.coalesce(running_jobs.c.jobs, 0)
    return (
        select(experiments.c.id.label("experiment_id"), room.label("room"))
        .outerjoin(running_jobs, running_jobs.c.experiment_id == experiments.c.id)
        .where(experiments.c.quota.is_not(None), not_(experiments.c.cancelled))
        .subquery()
    )


def _interest_with_room(now: ColumnElement[float], job: FromClause) -> Select[tuple[str]]:
    """The experiments that want `job` and may start another one."""
    room = _room(now)
    full = select(room.c.experiment_id).where(room.c.room <= 0)
    interest = experiment_jobs.alias("interest")
    return (
        select(interest.c.experiment_id)
        .where(
            interest.c.job_id == job.c.id,
            not_(interest.c.withdrawn),
            interest.c.experiment_id.not_in(full),
        )
        .correlate(job)
    )
