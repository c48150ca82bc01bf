"""Putting an experiment into the database: new units become jobs, known ones are linked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select, func, insert, literal, select

from overproof.core.ids import ExperimentId, GroupId, JobId, UnitId, new_experiment_id
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.core.states import JobState, UnitState
from overproof.results.comparisons import insert_comparisons
from overproof.results.engine import Transaction
from overproof.results.tables import (
    experiment_jobs,
    experiment_units,
    experiments,
    groups,
    job_inputs,
    jobs,
    units,
)
from overproof.results.transitions import (
    leave_terminal,
    of_experiment,
    recompute_priority,
    unlock,
)
from overproof.results.views import Comparison, Submitted, UnitStatus

T = TypeVar("T")

Batch = Callable[[Sequence[Unit]], Sequence[JobSpec]]

# Of parameters in one statement; SQLite takes 32,766.
_CHUNK = 1_000


def create_experiment(
    tx: Transaction,
    spec: ExperimentSpec,
    wanted_units: Sequence[Unit],
    *,
    group_bodies: Mapping[GroupId, Mapping[str, Any]],
    batch: Batch,
    retry_failed: bool,
    comparisons: Sequence[Comparison] = (),
) -> Submitted:
    """See `ResultsRepository.create_experiment`.

    Runs alone among submissions, so that of two that overlap the later one finds the units of
    the earlier one with their jobs, in either order.
    """
    experiment_id = new_experiment_id()
    tx.insert_many(
        experiments,
        [
            {
                "id": experiment_id,
                "name": spec.name,
                "spec": spec.to_json(),
                "priority": spec.priority,
                "quota": spec.quota,
            }
        ],
        created_at=tx.now,
    )
    known = _known(tx, (unit.id for unit in wanted_units))
    new_jobs = _batched([unit for unit in wanted_units if unit.id not in known], batch)
    _refuse_missing_inputs(tx, new_jobs, known)
    _insert_groups(tx, group_bodies)
    insert_comparisons(tx, comparisons)
    _insert_jobs(tx, new_jobs)
    tx.insert_many(
        experiment_units,
        [
            {"experiment_id": experiment_id, "unit_id": unit_id}
            for unit_id in sorted({unit.id for unit in wanted_units})
        ],
    )
    total = _link_jobs(tx, experiment_id)
    if total > _CHUNK:
        tx.refresh_statistics()
    own = of_experiment(experiment_id)
    # From here on nobody cancels, ends or loses one of these jobs between two statements.
    tx.lock_jobs(own)
    leavable = [JobState.CANCELLED.value] + [JobState.FAILED.value] * retry_failed
    leave_terminal(tx, own & jobs.c.state.in_(leavable))
    recompute_priority(tx, own)
    failed = tx.execute(
        select(jobs.c.id).where(own, jobs.c.state == JobState.FAILED.value).order_by(jobs.c.id)
    ).scalars()
    done = tx.execute(
        select(func.count())
        .select_from(experiment_units)
        .join(units, units.c.id == experiment_units.c.unit_id)
        .where(
            experiment_units.c.experiment_id == experiment_id,
            units.c.state == UnitState.DONE.value,
        )
    ).scalar_one()
    return Submitted(
        experiment_id=experiment_id,
        ready=unlock(tx, own),
        created=len(new_jobs),
        linked=total - len(new_jobs),
        done_units=done,
        failed=tuple(JobId(job_id) for job_id in failed),
    )


def unit_status(tx: Transaction, ids: Iterable[UnitId]) -> dict[UnitId, UnitStatus]:
    """See `ResultsRepository.unit_status`."""
    found: dict[UnitId, UnitStatus] = {}
    for chunk in _chunks(ids):
        rows = tx.execute(
            select(units.c.id, units.c.state, units.c.job_id, jobs.c.state.label("job_state"))
            .join(jobs, jobs.c.id == units.c.job_id)
            .where(units.c.id.in_(chunk))
        )
        for row in rows:
            unit_id = UnitId(row.id)
            found[unit_id] = UnitStatus(
                unit_id, UnitState(row.state), JobId(row.job_id), JobState(row.job_state)
            )
    return found


def _known(tx: Transaction, ids: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for chunk in _chunks(ids):
        known.update(tx.execute(select(units.c.id).where(units.c.id.in_(chunk))).scalars())
    return known


def _chunks(ids: Iterable[T]) -> Iterator[list[T]]:
    remaining = list(dict.fromkeys(ids))
    for start in range(0, len(remaining), _CHUNK):
        yield remaining[start : start + _CHUNK]


def _batched(new_units: Sequence[Unit], batch: Batch) -> list[JobSpec]:
    if not new_units:
        return []
    new_jobs = sorted(batch(new_units), key=lambda job: job.id)
    carried = sorted(unit.id for job in new_jobs for unit in job.units)
    if carried != sorted({unit.id for unit in new_units}):
        raise ValueError("batch must put each of its units into exactly one job")
    return new_jobs


def _refuse_missing_inputs(tx: Transaction, new_jobs: Sequence[JobSpec], known: set[str]) -> None:
    carried = {unit.id for job in new_jobs for unit in job.units}
    others = {need for job in new_jobs for need in job.inputs} - carried - known
    missing = others - _known(tx, others)
    if missing:
        raise ValueError(f"unit {min(missing)} is needed, but neither submitted nor known")


def _insert_groups(tx: Transaction, bodies: Mapping[GroupId, Mapping[str, Any]]) -> None:
    rows = [{"id": group_id, "body": dict(body)} for group_id, body in sorted(bodies.items())]
    if rows:
        tx.execute(tx.upsert(groups).on_conflict_do_nothing(), rows)


def _insert_jobs(tx: Transaction, new_jobs: Sequence[JobSpec]) -> None:
    tx.insert_many(
        jobs,
        [
            {
                "id": job.id,
                "kind": job.kind.value,
                "task": job.task,
                "spec": job.model_dump_json(),
                "label": label_of(job),
                "unit_count": len(job.units),
                "state": JobState.WAITING.value,
                "priority": 0,
            }
            for job in new_jobs
        ],
        due_at=tx.now,
        created_at=tx.now,
    )
    tx.insert_many(
        units,
        [
            {
                "id": unit.id,
                "kind": unit.kind.value,
                "task": unit.task,
                "body": dict(unit.body),
                "group_id": unit.group,
                "job_id": job.id,
                "state": UnitState.PENDING.value,
                "result": {},
            }
            for job in new_jobs
            for unit in job.units
        ],
    )
    tx.insert_many(
        job_inputs,
        [{"job_id": job.id, "unit_id": unit_id} for job in new_jobs for unit_id in job.inputs],
    )


def _link_jobs(tx: Transaction, experiment_id: ExperimentId) -> int:
    """Link the carriers of the experiment's units, and what those need; how many there are.

    A carrier may make more units than the experiment asks for, and need more: without interest in
    those inputs it could wait for a cancelled job for ever.
    """
    own_jobs = select(experiment_jobs.c.job_id).where(
        experiment_jobs.c.experiment_id == experiment_id
    )
    carriers = (
        select(units.c.job_id)
        .join(experiment_units, experiment_units.c.unit_id == units.c.id)
        .where(experiment_units.c.experiment_id == experiment_id)
    )
    producers = (
        select(units.c.job_id)
        .join(job_inputs, job_inputs.c.unit_id == units.c.id)
        .join(experiment_jobs, experiment_jobs.c.job_id == job_inputs.c.job_id)
        .where(experiment_jobs.c.experiment_id == experiment_id)
        .where(units.c.job_id.not_in(own_jobs))
    )
    total = added = _link(tx, experiment_id, carriers)
    while added:
        added = _link(tx, experiment_id, producers)
        total += added
    return total


def _link(tx: Transaction, experiment_id: ExperimentId, job_ids: Select[tuple[str]]) -> int:
    found = job_ids.distinct().subquery()
    return tx.execute(
        insert(experiment_jobs).from_select(
            ["experiment_id", "job_id"], select(literal(experiment_id), found.c.job_id)
        )
    ).rowcount


def label_of(job: JobSpec) -> str:
    """One line for lists: the names in the first unit's body, and how many units there are."""
    body = job.units[0].body
    words = [job.task]
    for name, value in body.items():
        if isinstance(value, Mapping) and "name" in value:
            words.append(str(value["name"]))
        elif isinstance(value, Mapping) and "epsilon" in value and len(job.units) == 1:
            words.append(str(value["epsilon"]))
        elif name == "images_per_class":
            words.append(f"{value} per class")
    if len(job.units) > 1:
        words.append(f"{len(job.units)} units")
    return " · ".join(dict.fromkeys(words))
