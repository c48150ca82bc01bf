"""Numbers over several groups: which are stale, and their metrics, written by nobody else.

Computing a group anew marks its comparisons stale in the same transaction. A comparison is then
computed whole, from the units of its groups, as a group is from its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, exists, not_, select, update

from overproof.core.ids import ComparisonId, ExperimentId, GroupId
from overproof.errors import NotFound
from overproof.results.engine import Transaction
from overproof.results.rows import METRIC_COLUMNS, metric_row, units_of_group
from overproof.results.tables import (
    comparison_groups,
    comparisons,
    experiment_units,
    groups,
    metric_values,
    units,
)
from overproof.results.views import (
    Comparison,
    ComparisonRow,
    GroupUnits,
    MetricRow,
)

# Of parameters in one statement; SQLite takes 32,766.
_CHUNK = 1_000

Compare = Callable[[Comparison, Mapping[GroupId, GroupUnits]], Sequence[MetricRow]]


def insert_comparisons(tx: Transaction, wanted_ones: Iterable[Comparison]) -> None:
    """Store those that are new, as stale ones; their groups are stored already."""
    new = {each.comparison_id: each for each in wanted_ones}
    if not new:
        return
    tx.execute(
        tx.upsert(comparisons).on_conflict_do_nothing(),
        [
            {"id": key, "kind": each.kind, "body": {"groups": dict(each.groups)}, "stale": True}
            for key, each in sorted(new.items())
        ],
    )
    tx.execute(
        tx.upsert(comparison_groups).on_conflict_do_nothing(),
        [
            {"comparison_id": key, "group_id": group_id}
            for key, each in sorted(new.items())
            for group_id in sorted(set(each.groups.values()))
        ],
    )


def mark_stale(tx: Transaction, group_id: GroupId) -> None:
    """Have the comparisons of a group computed anew."""
    concerned = select(comparison_groups.c.comparison_id).where(
        comparison_groups.c.group_id == group_id
    )
    # In the order of ids, so that two groups of the same comparisons never wait for each other.
    locked = (
        tx.execute(
            select(comparisons.c.id)
            .where(comparisons.c.id.in_(concerned))
            .order_by(comparisons.c.id)
            .with_for_update(key_share=True)
        )
        .scalars()
        .all()
    )
    if locked:
        tx.execute(update(comparisons).where(comparisons.c.id.in_(concerned)).values(stale=True))


def comparisons_to_aggregate(tx: Transaction, limit: int) -> list[ComparisonId]:
    """See `ResultsRepository.comparisons_to_aggregate`."""
    rows = tx.execute(
        select(comparisons.c.id).where(comparisons.c.stale).order_by(comparisons.c.id).limit(limit)
    ).scalars()
    return [ComparisonId(comparison_id) for comparison_id in rows]


def recompute_comparison(tx: Transaction, comparison_id: ComparisonId, compute: Compare) -> int:
    """See `ResultsRepository.recompute_comparison`."""
    this = select(comparisons).where(comparisons.c.id == comparison_id)
    row = tx.execute(this.with_for_update(key_share=True)).first()
    if row is None:
        raise NotFound(f"no comparison {comparison_id}")
    comparison = _comparison(row)
    metrics = compute(comparison, members_of(tx, comparison))
    strangers = {metric.subject for metric in metrics} - {comparison_id}
    if strangers:
        raise ValueError(f"{min(strangers)} is not comparison {comparison_id}")
    tx.execute(delete(metric_values).where(metric_values.c.comparison_id == comparison_id))
    tx.insert_many(
        metric_values,
        [asdict(metric) | {"scope": metric.scope.value} for metric in metrics],
        comparison_id=comparison_id,
    )
    # Whoever computes one of the groups meanwhile waits for this row, and marks it stale again.
    tx.execute(update(comparisons).where(comparisons.c.id == comparison_id).values(stale=False))
    return len(metrics)


def members_of(tx: Transaction, comparison: Comparison) -> dict[GroupId, GroupUnits]:
    """See `ResultsRepository.members`."""
    bodies = _bodies(tx, comparison.groups.values())
    return {
        group_id: GroupUnits(body, units_of_group(tx, group_id))
        for group_id, body in sorted(bodies.items())
    }


def comparisons_of(
    tx: Transaction, kind: str, experiment_id: ExperimentId | None
) -> list[ComparisonRow]:
    """See `ResultsRepository.comparisons`."""
    query = select(comparisons).where(comparisons.c.kind == kind).order_by(comparisons.c.id)
    if experiment_id is not None:
        own_groups = (
            select(units.c.group_id)
            .join(experiment_units, experiment_units.c.unit_id == units.c.id)
            .where(experiment_units.c.experiment_id == experiment_id)
            .where(units.c.group_id.is_not(None))
        )
        foreign = exists().where(
            comparison_groups.c.comparison_id == comparisons.c.id,
            comparison_groups.c.group_id.not_in(own_groups),
        )
        query = query.where(not_(foreign))
    found = {row.id: _comparison(row) for row in tx.execute(query)}
    bodies = _bodies(tx, (each for one in found.values() for each in one.groups.values()))
    metrics: dict[str, dict[tuple[str, str], MetricRow]] = {key: {} for key in found}
    query = (
        select(*METRIC_COLUMNS)
        .join(comparisons, comparisons.c.id == metric_values.c.comparison_id)
        .where(comparisons.c.kind == kind)
    )
    for row in tx.execute(query):
        if row.subject in metrics:
            metrics[row.subject][row.metric, row.slice] = metric_row(row)
    return [
        ComparisonRow(
            comparison,
            {role: bodies[group_id] for role, group_id in comparison.groups.items()},
            metrics[key],
        )
        for key, comparison in found.items()
    ]


def _comparison(row: Any) -> Comparison:
    return Comparison(
        row.kind, {role: GroupId(group_id) for role, group_id in row.body["groups"].items()}
    )


def _bodies(tx: Transaction, ids: Iterable[GroupId]) -> dict[GroupId, Mapping[str, Any]]:
    remaining = sorted(set(ids))
    found: dict[GroupId, Mapping[str, Any]] = {}
    for start in range(0, len(remaining), _CHUNK):
        chunk = remaining[start : start + _CHUNK]
        for row in tx.execute(select(groups.c.id, groups.c.body).where(groups.c.id.in_(chunk))):
            found[GroupId(row.id)] = row.body
    return found
