"""Moves of many jobs at once, shared by submitting, ending, cancelling and sweeping.

Each takes a condition on `jobs`, so that no list of ids travels to the database and back.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, case, func, not_, null, or_, select, update

from overproof.core.failure import FailureReport
from overproof.core.ids import ExperimentId, JobId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.errors import WorkerLost
from overproof.results.engine import Transaction
from overproof.results.predicates import expired, inputs_done, is_running, is_waiting, wanted
from overproof.results.tables import attempts, experiment_jobs, experiments, jobs, kind_controls
from overproof.results.views import EndKind


def of_experiment(experiment_id: ExperimentId) -> ColumnElement[bool]:
    """The jobs of an experiment, withdrawn or not."""
    return jobs.c.id.in_(
        select(experiment_jobs.c.job_id).where(experiment_jobs.c.experiment_id == experiment_id)
    )


def unlock(tx: Transaction, where: ColumnElement[bool]) -> tuple[JobSpec, ...]:
    """WAITING → READY for those of the jobs whose inputs are all done; due when they were due."""
    rows = tx.execute(
        update(jobs)
        .where(is_waiting(), where, inputs_done())
        .values(state=JobState.READY.value)
        .returning(jobs.c.id, jobs.c.spec)
    )
    return tuple(JobSpec.model_validate_json(row.spec) for row in sorted(rows))


def leave_terminal(tx: Transaction, where: ColumnElement[bool]) -> int:
    """The common part of retry, resubmit and quarantine: WAITING anew, with a higher token.

    `where` names the terminal state to be left; how many jobs left it.
    """
    return tx.execute(
        update(jobs)
        .where(where)
        .values(
            state=JobState.WAITING.value,
            token=jobs.c.token + 1,
            attempt=0,
            due_at=tx.now,
            progress=null(),
            error=null(),
            owner=null(),
            lease_until=null(),
            ended_at=null(),
            buried=False,
        )
    ).rowcount


def drop_unwanted(tx: Transaction, where: ColumnElement[bool]) -> tuple[JobId, ...]:
    """Those of the jobs that nobody wants any more; CANCELLED at once unless a worker has them.

    A worker learns it from its next renewal.
    """
    unwanted = and_(where, not_(wanted()))
    running = tx.execute(select(jobs.c.id).where(is_running(), unwanted)).scalars()
    told = [JobId(job_id) for job_id in running]
    idle = (JobState.WAITING.value, JobState.READY.value)
    cancelled = tx.execute(
        update(jobs)
        .where(jobs.c.state.in_(idle), unwanted)
        .values(state=JobState.CANCELLED.value, ended_at=tx.now)
        .returning(jobs.c.id)
    ).scalars()
    return tuple(sorted([*told, *(JobId(job_id) for job_id in cancelled)]))


def recompute_priority(tx: Transaction, where: ColumnElement[bool]) -> None:
    """The highest priority among the live experiments that want each job; else as it was."""
    highest = (
        select(func.max(experiments.c.priority))
        .join(experiment_jobs, experiment_jobs.c.experiment_id == experiments.c.id)
        .where(experiment_jobs.c.job_id == jobs.c.id, not_(experiment_jobs.c.withdrawn))
        .scalar_subquery()
    )
    tx.execute(
        update(jobs).where(where, wanted(), jobs.c.priority != highest).values(priority=highest)
    )


def expire_lost(tx: Transaction, max_attempts: int, breaker_limit: int) -> tuple[JobId, ...]:
    """RUNNING jobs whose worker died for the last time: FAILED, or CANCELLED if unwanted."""
    lost = FailureReport.of(
        WorkerLost(f"the worker died in each of {max_attempts} attempts; see its logs for why")
    )
    rows = tx.execute(
        update(jobs)
        .where(expired(tx.now), or_(jobs.c.attempt >= max_attempts, not_(wanted())))
        .values(
            state=case((wanted(), JobState.FAILED.value), else_=JobState.CANCELLED.value),
            error=case((wanted(), lost.summary), else_=jobs.c.error),
            owner=null(),
            lease_until=null(),
            ended_at=tx.now,
        )
        .returning(jobs.c.id, jobs.c.kind, jobs.c.token, jobs.c.state)
    ).all()
    for row in sorted(rows):
        failed = row.state == JobState.FAILED.value
        outcome = EndKind.FAILED if failed else EndKind.CANCELLED
        close_lost_attempts(tx, JobId(row.id), row.token, outcome, lost)
        if failed:
            count_failure(tx, JobKind(row.kind), breaker_limit)
    return tuple(JobId(row.id) for row in sorted(rows))


def close_lost_attempts(
    tx: Transaction, job_id: JobId, last_token: int, outcome: EndKind, failure: FailureReport
) -> None:
    """Write down that the attempts up to `last_token` that nobody ended were lost."""
    tx.execute(
        update(attempts)
        .where(
            attempts.c.job_id == job_id,
            attempts.c.token <= last_token,
            attempts.c.outcome.is_(None),
        )
        .values(ended_at=tx.now, outcome=outcome.value, failure=failure.model_dump(mode="json"))
    )


def count_failure(tx: Transaction, kind: JobKind, breaker_limit: int) -> None:
    """One more FAILED job of the kind in a row; at the limit no more are claimed."""
    failures = kind_controls.c.failures_in_a_row + 1
    tx.execute(
        update(kind_controls)
        .where(kind_controls.c.kind == kind.value)
        .values(
            failures_in_a_row=failures,
            breaker_open=or_(kind_controls.c.breaker_open, failures >= breaker_limit),
        )
    )


def count_success(tx: Transaction, kind: JobKind) -> None:
    """The row of failures is over. An open breaker stays open until a person resumes the kind."""
    # Nearly always nothing to do: then no row is locked, and ends do not wait for each other.
    tx.execute(
        update(kind_controls)
        .where(kind_controls.c.kind == kind.value, kind_controls.c.failures_in_a_row > 0)
        .values(failures_in_a_row=0)
    )
