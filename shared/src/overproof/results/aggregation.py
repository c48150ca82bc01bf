"""Numbers from outcomes: which groups have news, and their metrics, written by nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import bindparam, delete, not_, or_, select, update

from overproof.core.ids import ExperimentId, GroupId, JobId, UnitId
from overproof.core.states import JobKind, UnitState
from overproof.errors import NotFound
from overproof.results.engine import Transaction
from overproof.results.predicates import wanted
from overproof.results.tables import experiment_units, groups, jobs, metric_values, units
from overproof.results.views import LeaderboardRow, MetricRow, MetricScope, UnitRow

Compute = Callable[[Mapping[str, Any], Sequence[UnitRow]], Sequence[MetricRow]]

_METRIC_COLUMNS = [column for column in metric_values.c if column.name != "group_id"]
_UNIT_COLUMNS = [column for column in units.c if column.name != "aggregated"]
_CHUNK = 1_000


def groups_to_aggregate(tx: Transaction, limit: int) -> list[GroupId]:
    """See `ResultsRepository.groups_to_aggregate`."""
    rows = tx.execute(
        select(units.c.group_id)
        .where(units.c.state == UnitState.DONE.value, not_(units.c.aggregated))
        .where(units.c.group_id.is_not(None))
        .distinct()
        .order_by(units.c.group_id)
        .limit(limit)
    ).scalars()
    return [GroupId(group_id) for group_id in rows]


def recompute(tx: Transaction, group_id: GroupId, compute: Compute) -> int:
    """See `ResultsRepository.recompute`."""
    this = select(groups).where(groups.c.id == group_id)
    group = tx.execute(this.with_for_update(key_share=True)).first()
    if group is None:
        raise NotFound(f"no group {group_id}")
    is_relevant = or_(units.c.state == UnitState.DONE.value, wanted())
    seen = [
        unit_row(row)
        for row in tx.execute(
            select(*_UNIT_COLUMNS)
            .join(jobs, jobs.c.id == units.c.job_id)
            .where(units.c.group_id == group_id, is_relevant)
            .order_by(units.c.id)
        )
    ]
    metrics = compute(group.body, seen)
    strangers = {row.subject for row in metrics} - {group_id, *(row.unit_id for row in seen)}
    if strangers:
        raise ValueError(f"{min(strangers)} is not of group {group_id}: no number belongs to it")
    tx.execute(delete(metric_values).where(metric_values.c.group_id == group_id))
    tx.insert_many(
        metric_values,
        [asdict(row) | {"scope": row.scope.value} for row in metrics],
        group_id=group_id,
    )
    # By token: a unit that was made anew since it was read counts as news again.
    done = [
        {"seen_id": row.unit_id, "seen_token": row.token}
        for row in seen
        if row.state is UnitState.DONE
    ]
    if done:
        tx.execute(
            update(units)
            .where(
                units.c.id == bindparam("seen_id"),
                units.c.token == bindparam("seen_token"),
                units.c.state == UnitState.DONE.value,
            )
            .values(aggregated=True),
            done,
        )
    return len(metrics)


def leaderboard(tx: Transaction, experiment_id: ExperimentId | None) -> list[LeaderboardRow]:
    """See `ResultsRepository.leaderboard`."""
    query = (
        select(groups.c.id, groups.c.body, *_METRIC_COLUMNS)
        .join(metric_values, metric_values.c.subject == groups.c.id)
        .order_by(groups.c.id, metric_values.c.metric, metric_values.c.slice)
    )
    if experiment_id is not None:
        query = query.where(
            groups.c.id.in_(
                select(units.c.group_id)
                .join(experiment_units, experiment_units.c.unit_id == units.c.id)
                .where(experiment_units.c.experiment_id == experiment_id)
            )
        )
    bodies: dict[GroupId, Mapping[str, Any]] = {}
    metrics: dict[GroupId, dict[tuple[str, str], MetricRow]] = {}
    for row in tx.execute(query):
        group_id = GroupId(row.id)
        bodies[group_id] = row.body
        metrics.setdefault(group_id, {})[row.metric, row.slice] = _metric_row(row)
    return [LeaderboardRow(group_id, bodies[group_id], metrics[group_id]) for group_id in bodies]


def metrics_of(tx: Transaction, subjects: Iterable[str]) -> list[MetricRow]:
    """See `ResultsRepository.metrics`."""
    remaining = sorted(set(subjects))
    found: list[MetricRow] = []
    for start in range(0, len(remaining), _CHUNK):
        rows = tx.execute(
            select(*_METRIC_COLUMNS)
            .where(metric_values.c.subject.in_(remaining[start : start + _CHUNK]))
            .order_by(metric_values.c.subject, metric_values.c.metric, metric_values.c.slice)
        )
        found.extend(_metric_row(row) for row in rows)
    return found


def unit_row(row: Any) -> UnitRow:
    """The view of a row with all columns of `units` but `aggregated`."""
    return UnitRow(
        unit_id=UnitId(row.id),
        kind=JobKind(row.kind),
        task=row.task,
        body=row.body,
        group=None if row.group_id is None else GroupId(row.group_id),
        state=UnitState(row.state),
        job_id=JobId(row.job_id),
        token=row.token,
        result=row.result,
    )


def _metric_row(row: Any) -> MetricRow:
    values = {column.name: getattr(row, column.name) for column in _METRIC_COLUMNS}
    return MetricRow(**values | {"scope": MetricScope(row.scope)})
