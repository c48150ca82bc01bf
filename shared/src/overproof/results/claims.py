"""Who runs what: claim, renew, end. One winner for each claim; a stale token changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    String,
    and_,
    bindparam,
    case,
    exists,
    literal,
    not_,
    null,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from overproof.core.failure import FailureReport
from overproof.core.ids import JobId, UnitId
from overproof.core.retry import RetryPolicy
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState, UnitState
from overproof.errors import WorkerLost
from overproof.results.engine import Transaction, printable
from overproof.results.predicates import claimable, wanted
from overproof.results.tables import attempts, experiments, job_inputs, jobs, units
from overproof.results.transitions import (
    close_lost_attempts,
    count_failure,
    count_success,
    unlock,
)
from overproof.results.views import Claim, Ended, EndKind, Outcome, Progress, Renewal


@dataclass(frozen=True)
class ClaimRules:
    """How often a job is tried, and how many failures in a row stop a kind."""

    retry: RetryPolicy
    breaker_limit: int


def claim(
    tx: Transaction,
    rules: ClaimRules,
    kind: JobKind,
    *,
    owner: str,
    ttl_s: float,
    prefer: JobId | None,
) -> Claim | None:
    """See `ResultsRepository.claim`."""
    has_quota = select(experiments.c.id).where(
        experiments.c.quota.is_not(None), not_(experiments.c.cancelled)
    )
    if tx.execute(has_quota.limit(1)).first() is not None:
        # Two claims at once would both find the last free place of a quota.
        tx.lock_claims()
    values = {"of_kind": kind.value, "new_owner": owner, "ttl_s": ttl_s}
    row = None
    if prefer is not None:
        preferred = _claim_statement(tx.now, rules.retry.max_attempts, of_one_job=True)
        row = tx.execute(preferred, values | {"preferred": prefer}).first()
    if row is None:
        any_job = _claim_statement(tx.now, rules.retry.max_attempts, of_one_job=False)
        row = tx.execute(any_job, values).first()
    if row is None:
        return None
    job = JobSpec.model_validate_json(row.spec)
    if row.token > 1:
        lost = FailureReport.of(WorkerLost("the lease of the attempt ran out"))
        close_lost_attempts(tx, job.job_id, row.token - 1, EndKind.RETRY, lost)
    tx.insert_many(
        attempts,
        [
            {
                "job_id": row.id,
                "token": row.token,
                "attempt": row.attempt,
                "owner": owner,
                "started_at": row.started_at,
                "facts": {},
            }
        ],
    )
    return Claim(job, row.token, row.attempt, owner, ttl_s, _inputs(tx, job.job_id))


@lru_cache(maxsize=16)
def _claim_statement(
    now: ColumnElement[float], max_attempts: int, *, of_one_job: bool
) -> ReturningUpdate[Any]:
    """Takes one job; of parameters `of_kind`, `new_owner`, `ttl_s`, and `preferred` if of one job.

    Kept, since putting it together takes longer than running it. The job is named by `=` and a
    subquery, which runs once; under IN the planner may run it anew for each row and lock more.
    """
    job = jobs.alias("candidate")
    of_kind = bindparam("of_kind", type_=String)
    choice = select(job.c.id).where(job.c.kind == of_kind, claimable(now, max_attempts, job))
    if of_one_job:
        other = jobs.alias("other")
        more_urgent = exists().where(
            other.c.kind == of_kind,
            other.c.priority > job.c.priority,
            claimable(now, max_attempts, other),
        )
        choice = choice.where(job.c.id == bindparam("preferred"), not_(more_urgent))
    else:
        choice = choice.order_by(job.c.priority.desc(), job.c.due_at)
    choice = choice.limit(1).with_for_update(skip_locked=True, key_share=True, of=job)
    return (
        update(jobs)
        .where(jobs.c.id == choice.scalar_subquery())
        .values(
            state=JobState.RUNNING.value,
            token=jobs.c.token + 1,
            attempt=jobs.c.attempt + 1,
            owner=bindparam("new_owner"),
            lease_until=now + bindparam("ttl_s", type_=Double),
            progress=null(),
            started_at=now,
            ended_at=null(),
        )
        .returning(jobs.c.id, jobs.c.spec, jobs.c.token, jobs.c.attempt, jobs.c.started_at)
    )


def _inputs(tx: Transaction, job_id: JobId) -> Mapping[UnitId, JobId]:
    rows = tx.execute(
        select(units.c.id, units.c.job_id)
        .join(job_inputs, job_inputs.c.unit_id == units.c.id)
        .where(job_inputs.c.job_id == job_id)
        .order_by(units.c.id)
    )
    return {UnitId(row.id): JobId(row.job_id) for row in rows}


def renew(tx: Transaction, claim: Claim, progress: Progress | None) -> Renewal:
    """See `ResultsRepository.renew`."""
    values: dict[str, Any] = {"lease_until": tx.now + claim.ttl_s}
    if progress is not None:
        values["progress"] = {
            "step": progress.step,
            "total": progress.total,
            "scalars": dict(progress.scalars),
        }
    held = tx.execute(update(jobs).where(_is_held(claim)).values(values)).rowcount
    if not held:
        return Renewal.LOST
    is_wanted = tx.execute(select(wanted()).where(jobs.c.id == claim.job_id)).scalar_one()
    return Renewal.HELD if is_wanted else Renewal.CANCEL


def _is_held(claim: Claim) -> ColumnElement[bool]:
    return and_(
        jobs.c.id == claim.job_id,
        jobs.c.token == claim.token,
        jobs.c.state == JobState.RUNNING.value,
    )


def end(tx: Transaction, rules: ClaimRules, claim: Claim, outcome: Outcome) -> Ended:
    """See `ResultsRepository.end`."""
    own_units = sorted(unit.id for unit in claim.job.units)
    if outcome.kind is EndKind.SUCCEEDED and sorted(outcome.results) != own_units:
        raise ValueError(f"{claim.job_id} succeeded without a result for each of its units")
    kind = outcome.kind
    if kind is EndKind.RETRY and claim.attempt >= rules.retry.max_attempts:
        kind = EndKind.FAILED
    this = jobs.c.id == claim.job_id
    child_ids = select(job_inputs.c.job_id).where(job_inputs.c.unit_id.in_(own_units))
    # The children too: two parents that end at once must see each other's units.
    tx.lock_jobs(jobs.c.id.in_(child_ids.union_all(select(literal(claim.job_id)))))
    values = _values_of_end(tx, kind, outcome)
    if not tx.execute(update(jobs).where(_is_held(claim)).values(values)).rowcount:
        return Ended(accepted=False)
    _close_attempt(tx, claim, kind, outcome)
    if kind is EndKind.SUCCEEDED:
        _store_results(tx, claim, outcome)
        count_success(tx, claim.job.kind)
        # Asked again, as a submission that held our row may have added some; and by name, since
        # planners without statistics would rather go through all WAITING jobs.
        children = list(tx.execute(child_ids.distinct()).scalars())
        unlocked = unlock(tx, jobs.c.id.in_(children)) if children else ()
        return Ended(accepted=True, unlocked=unlocked)
    if kind is EndKind.FAILED:
        count_failure(tx, claim.job.kind, rules.breaker_limit)
        return Ended(accepted=True)
    ready = unlock(tx, this)
    is_due = kind is not EndKind.RETRY or outcome.retry_in_s <= 0
    return Ended(accepted=True, unlocked=ready if is_due else ())


def _values_of_end(tx: Transaction, kind: EndKind, outcome: Outcome) -> dict[str, Any]:
    values: dict[str, Any] = {"owner": null(), "lease_until": null()}
    if outcome.failure is not None:
        values["error"] = printable(outcome.failure.summary)
    if kind is EndKind.SUCCEEDED:
        return values | {
            "state": JobState.SUCCEEDED.value,
            "ended_at": tx.now,
            "error": null(),
        }
    if kind is EndKind.FAILED:
        return values | {"state": JobState.FAILED.value, "ended_at": tx.now}
    if kind is not EndKind.RETRY:
        values["attempt"] = jobs.c.attempt - 1  # handed back: the attempt does not count
    # WAITING, not READY: an input may have been quarantined meanwhile. `unlock` decides.
    return values | {
        "state": case((wanted(), JobState.WAITING.value), else_=JobState.CANCELLED.value),
        "ended_at": case((wanted(), null()), else_=tx.now),
        "due_at": tx.now + (outcome.retry_in_s if kind is EndKind.RETRY else 0.0),
    }


def _close_attempt(tx: Transaction, claim: Claim, kind: EndKind, outcome: Outcome) -> None:
    failure = outcome.failure.model_dump(mode="json") if outcome.failure else None
    tx.execute(
        update(attempts)
        .where(attempts.c.job_id == claim.job_id, attempts.c.token == claim.token)
        .values(ended_at=tx.now, outcome=kind.value, failure=failure, facts=dict(outcome.facts))
    )


def _store_results(tx: Transaction, claim: Claim, outcome: Outcome) -> None:
    tx.execute(
        update(units)
        .where(units.c.id == bindparam("unit_id"))
        .values(
            state=UnitState.DONE.value,
            token=claim.token,
            result=bindparam("unit_result"),
            aggregated=False,
        ),
        [
            {"unit_id": unit_id, "unit_result": dict(result)}
            for unit_id, result in sorted(outcome.results.items())
        ],
    )
