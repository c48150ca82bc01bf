"""What people and the aggregator do to jobs: cancel, retry, pause, quarantine, sweep."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement, and_, func, select, true, update

from overproof.core.ids import ExperimentId, JobId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState, UnitState
from overproof.errors import NotFound
from overproof.results.claims import ClaimRules
from overproof.results.engine import Transaction
from overproof.results.predicates import is_queued, jobs_wanted, wanted
from overproof.results.tables import (
    experiment_jobs,
    experiments,
    job_inputs,
    jobs,
    kind_controls,
    units,
)
from overproof.results.transitions import (
    drop_unwanted,
    expire_lost,
    leave_terminal,
    of_experiment,
    recompute_priority,
    unlock,
)
from overproof.results.views import KindStatus


def cancel_experiment(tx: Transaction, experiment_id: ExperimentId) -> tuple[JobId, ...]:
    """See `ResultsRepository.cancel_experiment`."""
    found = tx.execute(
        update(experiments).where(experiments.c.id == experiment_id).values(cancelled=True)
    ).rowcount
    if not found:
        raise NotFound(f"no experiment {experiment_id}; list them with `overproof status`")
    own = of_experiment(experiment_id)
    tx.lock_jobs(own)
    tx.execute(
        update(experiment_jobs)
        .where(experiment_jobs.c.experiment_id == experiment_id)
        .values(withdrawn=True)
    )
    recompute_priority(tx, own)
    return drop_unwanted(tx, own)


def request_cancel(tx: Transaction, job_id: JobId) -> None:
    """See `ResultsRepository.request_cancel`."""
    require_job(tx, job_id)
    this = jobs.c.id == job_id
    tx.lock_jobs(this)
    tx.execute(
        update(experiment_jobs).where(experiment_jobs.c.job_id == job_id).values(withdrawn=True)
    )
    drop_unwanted(tx, this)


def retry(tx: Transaction, job_id: JobId) -> tuple[JobSpec, ...]:
    """See `ResultsRepository.retry`."""
    require_job(tx, job_id)
    return _retry(tx, jobs.c.id == job_id)


def retry_failed(tx: Transaction, experiment_id: ExperimentId | None) -> tuple[JobSpec, ...]:
    """See `ResultsRepository.retry_failed`."""
    return _retry(tx, true() if experiment_id is None else of_experiment(experiment_id))


def _retry(tx: Transaction, where: ColumnElement[bool]) -> tuple[JobSpec, ...]:
    tx.lock_jobs(where & (jobs.c.state == JobState.FAILED.value))
    leave_terminal(tx, and_(where, jobs.c.state == JobState.FAILED.value, wanted()))
    return unlock(tx, where)


def require_job(tx: Transaction, job_id: JobId) -> None:
    """Nothing, if the database knows the job.

    Raises:
        NotFound: it does not.
    """
    if tx.execute(select(jobs.c.id).where(jobs.c.id == job_id)).first() is None:
        raise NotFound(f"no job {job_id}; list jobs with `overproof status`")


def quarantine(
    tx: Transaction, job_id: JobId, token: int, delete_manifest: Callable[[], None]
) -> tuple[JobSpec, ...]:
    """See `ResultsRepository.quarantine`."""
    require_job(tx, job_id)
    this = jobs.c.id == job_id
    own_units = units.c.job_id == job_id
    dependants = jobs.c.id.in_(
        select(job_inputs.c.job_id).join(units, units.c.id == job_inputs.c.unit_id).where(own_units)
    )
    tx.lock_jobs(this | dependants)
    made_by = and_(this, jobs.c.token == token, jobs.c.state == JobState.SUCCEEDED.value)
    if tx.execute(select(jobs.c.id).where(made_by)).first() is None:
        return ()  # somebody else was quicker
    # Before the commit: a job that is READY with its old manifest would end at once, corrupt. A
    # crash in between leaves a job without manifest, which the next reader quarantines again.
    delete_manifest()
    leave_terminal(tx, this)
    tx.execute(
        update(units)
        .where(own_units)
        .values(state=UnitState.PENDING.value, result={}, aggregated=False)
    )
    tx.execute(
        update(jobs)
        .where(dependants, jobs.c.state == JobState.READY.value)
        .values(state=JobState.WAITING.value)
    )
    drop_unwanted(tx, this)
    return unlock(tx, this)


def sweep(tx: Transaction, rules: ClaimRules) -> tuple[JobSpec, ...]:
    """See `ResultsRepository.sweep`."""
    expire_lost(tx, rules.retry.max_attempts, rules.breaker_limit)
    return unlock(tx, true())


def pause(tx: Transaction, kind: JobKind) -> None:
    """See `ResultsRepository.pause`."""
    tx.execute(update(kind_controls).where(kind_controls.c.kind == kind.value).values(paused=True))


def resume(tx: Transaction, kind: JobKind) -> None:
    """See `ResultsRepository.resume`."""
    tx.execute(
        update(kind_controls)
        .where(kind_controls.c.kind == kind.value)
        .values(paused=False, breaker_open=False, failures_in_a_row=0)
    )


def kind_status(tx: Transaction, rules: ClaimRules) -> list[KindStatus]:
    """See `ResultsRepository.kind_status`."""
    wanted_of = {
        row.kind: row.wanted for row in tx.execute(jobs_wanted(tx.now, rules.retry.max_attempts))
    }
    count_of = {
        (row.kind, row.state): row.jobs
        for row in tx.execute(
            select(jobs.c.kind, jobs.c.state, func.count().label("jobs"))
            .where(is_queued())
            .group_by(jobs.c.kind, jobs.c.state)
        )
    }
    controls = {row.kind: row for row in tx.execute(select(kind_controls))}
    return [
        KindStatus(
            kind=kind,
            paused=controls[kind].paused,
            breaker_open=controls[kind].breaker_open,
            failures_in_a_row=controls[kind].failures_in_a_row,
            ready=count_of.get((kind.value, JobState.READY.value), 0),
            running=count_of.get((kind.value, JobState.RUNNING.value), 0),
            wanted=wanted_of[kind],
        )
        for kind in JobKind
    ]
