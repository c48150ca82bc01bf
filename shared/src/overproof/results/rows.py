"""From rows of the database to frozen values, for whoever reads them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select

from overproof.core.ids import GroupId, JobId, UnitId
from overproof.core.states import JobKind, UnitState
from overproof.results.engine import Transaction
from overproof.results.predicates import wanted
from overproof.results.tables import jobs, metric_values, units
from overproof.results.views import MetricRow, MetricScope, UnitRow

_OWNERS = {"group_id", "comparison_id"}
METRIC_COLUMNS = [column for column in metric_values.c if column.name not in _OWNERS]
UNIT_COLUMNS = [column for column in units.c if column.name != "aggregated"]


def units_of_group(tx: Transaction, group_id: GroupId) -> list[UnitRow]:
    """Units of a group that are DONE or still wanted, by id: what its numbers are made of."""
    is_relevant = or_(units.c.state == UnitState.DONE.value, wanted())
    rows = tx.execute(
        select(*UNIT_COLUMNS)
        .join(jobs, jobs.c.id == units.c.job_id)
        .where(units.c.group_id == group_id, is_relevant)
        .order_by(units.c.id)
    )
    return [unit_row(row) for row in rows]


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


def metric_row(row: Any) -> MetricRow:
    """The view of a row with `METRIC_COLUMNS`."""
    values = {column.name: getattr(row, column.name) for column in METRIC_COLUMNS}
    return MetricRow(**values | {"scope": MetricScope(row.scope)})
