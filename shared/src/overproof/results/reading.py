"""What lists and pages show: experiments, jobs, attempts, units."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Select, case, func, select

from overproof.core.failure import FailureReport
from overproof.core.ids import ExperimentId, JobId, UnitId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.errors import NotFound
from overproof.results.engine import Transaction
from overproof.results.predicates import blocked, is_waiting, wanted
from overproof.results.rows import unit_row
from overproof.results.tables import (
    attempts,
    experiment_jobs,
    experiment_units,
    experiments,
    jobs,
    units,
)
from overproof.results.views import (
    AttemptView,
    EndKind,
    ExperimentView,
    JobView,
    Progress,
    UnitRow,
)


def experiments_newest_first(
    tx: Transaction, *, limit: int, only: ExperimentId | None = None
) -> list[ExperimentView]:
    """See `ResultsRepository.experiments`."""
    query = select(experiments).order_by(experiments.c.created_at.desc(), experiments.c.id)
    if only is not None:
        query = query.where(experiments.c.id == only)
    rows = tx.execute(query.limit(limit)).all()
    shown = [row.id for row in rows]
    counts: dict[str, dict[JobState, int]] = {experiment_id: {} for experiment_id in shown}
    for count in tx.execute(
        select(experiment_jobs.c.experiment_id, jobs.c.state, func.count().label("jobs"))
        .join(jobs, jobs.c.id == experiment_jobs.c.job_id)
        .where(experiment_jobs.c.experiment_id.in_(shown))
        .group_by(experiment_jobs.c.experiment_id, jobs.c.state)
    ):
        counts[count.experiment_id][JobState(count.state)] = count.jobs
    in_vain = blocked()
    blocked_jobs = {
        row.experiment_id: row.jobs
        for row in tx.execute(
            select(
                experiment_jobs.c.experiment_id,
                func.count(experiment_jobs.c.job_id.distinct()).label("jobs"),
            )
            .join(in_vain, in_vain.c.job_id == experiment_jobs.c.job_id)
            .where(experiment_jobs.c.experiment_id.in_(shown))
            .group_by(experiment_jobs.c.experiment_id)
        )
    }
    return [
        ExperimentView(
            experiment_id=ExperimentId(row.id),
            name=row.name,
            spec=row.spec,
            priority=row.priority,
            cancelled=row.cancelled,
            created_at=row.created_at,
            jobs=counts[row.id],
            blocked=blocked_jobs.get(row.id, 0),
        )
        for row in rows
    ]


def experiment(tx: Transaction, experiment_id: ExperimentId) -> ExperimentView:
    """See `ResultsRepository.experiment`."""
    found = experiments_newest_first(tx, limit=1, only=experiment_id)
    if not found:
        raise NotFound(f"no experiment {experiment_id}; list them with `overproof status`")
    return found[0]


def job_views(
    tx: Transaction,
    *,
    limit: int,
    offset: int = 0,
    experiment_id: ExperimentId | None = None,
    state: JobState | None = None,
    kind: JobKind | None = None,
    job_id: JobId | None = None,
) -> list[JobView]:
    """See `ResultsRepository.jobs`."""
    query = _jobs()
    if experiment_id is not None:
        query = query.join(experiment_jobs, experiment_jobs.c.job_id == jobs.c.id).where(
            experiment_jobs.c.experiment_id == experiment_id
        )
    if state is not None:
        query = query.where(jobs.c.state == state.value)
    if kind is not None:
        query = query.where(jobs.c.kind == kind.value)
    if job_id is not None:
        query = query.where(jobs.c.id == job_id)
    query = query.order_by(jobs.c.created_at.desc(), jobs.c.id).limit(limit).offset(offset)
    return [_job_view(row) for row in tx.execute(query)]


def job(tx: Transaction, job_id: JobId) -> JobView:
    """See `ResultsRepository.job`."""
    found = job_views(tx, limit=1, job_id=job_id)
    if not found:
        raise NotFound(f"no job {job_id}; list jobs with `overproof status`")
    return found[0]


def job_spec(tx: Transaction, job_id: JobId) -> JobSpec:
    """See `ResultsRepository.job_spec`."""
    text = tx.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar()
    if text is None:
        raise NotFound(f"no job {job_id}; list jobs with `overproof status`")
    return JobSpec.model_validate_json(text)


def attempts_of(tx: Transaction, job_id: JobId) -> list[AttemptView]:
    """See `ResultsRepository.attempts`."""
    rows = tx.execute(
        select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.token)
    )
    return [
        AttemptView(
            job_id=job_id,
            token=row.token,
            attempt=row.attempt,
            owner=row.owner,
            started_at=row.started_at,
            ended_at=row.ended_at,
            outcome=None if row.outcome is None else EndKind(row.outcome),
            failure=None if row.failure is None else FailureReport.model_validate(row.failure),
            facts=row.facts,
        )
        for row in rows
    ]


def units_of(tx: Transaction, experiment_id: ExperimentId) -> list[UnitRow]:
    """See `ResultsRepository.units`."""
    rows = tx.execute(
        select(units)
        .join(experiment_units, experiment_units.c.unit_id == units.c.id)
        .where(experiment_units.c.experiment_id == experiment_id)
        .order_by(units.c.id)
    )
    return [unit_row(row) for row in rows]


def carrier(tx: Transaction, unit_id: UnitId) -> JobId:
    """See `ResultsRepository.carrier`."""
    job_id = tx.execute(select(units.c.job_id).where(units.c.id == unit_id)).scalar()
    if job_id is None:
        raise NotFound(f"no unit {unit_id}; plan its experiment with `overproof plan`")
    return JobId(job_id)


@cache
def _jobs() -> Select[Any]:
    """All jobs with the columns of `JobView`. Built once: that takes longer than to run it."""
    in_vain = blocked()
    cause = select(func.min(in_vain.c.cause)).where(in_vain.c.job_id == jobs.c.id)
    # Only a WAITING job has a cause; for others the blocked ones are not looked for.
    blocked_by = case((is_waiting(), cause.scalar_subquery()))
    columns = [column for column in jobs.c if column.name != "spec"]
    return select(*columns, blocked_by.label("blocked_by"), wanted().label("is_wanted"))


def _job_view(row: Any) -> JobView:
    return JobView(
        job_id=JobId(row.id),
        kind=JobKind(row.kind),
        task=row.task,
        state=JobState(row.state),
        priority=row.priority,
        attempt=row.attempt,
        token=row.token,
        owner=row.owner,
        progress=_progress(row.progress),
        error=row.error,
        blocked_by=row.blocked_by,
        units=row.unit_count,
        label=row.label,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        due_at=row.due_at,
        cancel_requested=row.state == JobState.RUNNING.value and not row.is_wanted,
    )


def _progress(value: Mapping[str, Any] | None) -> Progress | None:
    if value is None:
        return None
    # A loss that is NaN was stored as null: it is left out.
    scalars = {name: float(x) for name, x in value["scalars"].items() if x is not None}
    return Progress(value["step"], value["total"], scalars)
