"""Numbers from outcomes: which groups have news, and their metrics, written by nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import bindparam, delete, not_, select, update

from overproof.core.ids import ExperimentId, GroupId
from overproof.core.states import UnitState
from overproof.errors import NotFound
from overproof.results.comparisons import mark_stale
from overproof.results.engine import Transaction
from overproof.results.rows import METRIC_COLUMNS, metric_row, units_of_group
from overproof.results.tables import experiment_units, groups, metric_values, units
from overproof.results.views import LeaderboardRow, MetricRow, UnitRow

Compute = Callable[[Mapping[str, Any], Sequence[UnitRow]], Sequence[MetricRow]]

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
    seen = units_of_group(tx, group_id)
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
    mark_stale(tx, group_id)
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
        select(groups.c.id, groups.c.body, *METRIC_COLUMNS)
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
        metrics.setdefault(group_id, {})[row.metric, row.slice] = metric_row(row)
    return [LeaderboardRow(group_id, bodies[group_id], metrics[group_id]) for group_id in bodies]


def metrics_of(tx: Transaction, subjects: Iterable[str]) -> list[MetricRow]:
    """See `ResultsRepository.metrics`."""
    remaining = sorted(set(subjects))
    found: list[MetricRow] = []
    for start in range(0, len(remaining), _CHUNK):
        rows = tx.execute(
            select(*METRIC_COLUMNS)
            .where(metric_values.c.subject.in_(remaining[start : start + _CHUNK]))
            .order_by(metric_values.c.subject, metric_values.c.metric, metric_values.c.slice)
        )
        found.extend(metric_row(row) for row in rows)
    return found
