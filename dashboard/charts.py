"""Tables and figures of the pages. Numbers are fractions until here, where they become percent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from overproof.report import ranking
from overproof.report.figures import FIGURES
from overproof.report.ranking import Ranked
from overproof.report.standings import Measured, Standing
from overproof.report.text import LEGEND, breakers, doubts, notes

_PERCENT = ("clean %", "robust %", "drop rate %", "clean ±", "robust ±", "drop rate ±")


def show_table(rows: Sequence[Standing]) -> None:
    """The leaderboard of one bench; columns sort by number."""
    st.dataframe(
        [_row(row) for row in rows],
        hide_index=True,
        column_config={name: st.column_config.NumberColumn(format="%.1f") for name in _PERCENT},
    )
    st.caption(LEGEND)
    for doubt in doubts(rows):
        st.text(f"! {doubt}")
    for title, lines in (
        ("Numbers that are not complete", notes(rows)),
        ("Which attacks made the worst cases", breakers(rows)),
    ):
        if lines:
            with st.expander(f"{title}: {len(lines)}"):
                for line in lines:
                    st.text(line)


def show_ranking(rows: Sequence[Ranked]) -> None:
    """The ranking of one bench."""
    st.dataframe(
        [dict(zip(ranking.HEADERS, row, strict=True)) for row in ranking.cells(rows)],
        hide_index=True,
    )
    st.caption(ranking.LEGEND)
    for note in ranking.notes(rows):
        st.text(f"* {note}")


def show_figures(rows: Sequence[Standing]) -> None:
    """The figures of one bench, a tab each."""
    for tab, (title, draw) in zip(st.tabs(list(FIGURES)), FIGURES.items(), strict=True):
        with tab:
            st.plotly_chart(draw(rows), key=title)


def show_matrix(rows: Sequence[Standing]) -> None:
    """Robust accuracy, a line for each training set and bench, a column for each cell."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            (row.training_set, row.bench),
            {"trained on": row.training_set, "clean": _percent(row.clean.value)},
        )
        if row.cell is not None:
            line[row.cell] = _percent(row.robust.value)
        line["bench"] = row.bench
    columns = ["clean", *dict.fromkeys(row.cell for row in rows if row.cell is not None)]
    st.dataframe(
        list(lines.values()),
        hide_index=True,
        column_order=["trained on", *columns, "bench"],
        column_config={name: st.column_config.NumberColumn(format="%.1f") for name in columns},
    )


def _row(row: Standing) -> dict[str, Any]:
    record: dict[str, Any] = {
        "method": row.method,
        "images/class": row.images_per_class,
        "attack": row.cell,
    }
    for name, measured in (
        ("clean", row.clean),
        ("robust", row.robust),
        ("drop rate", row.drop_rate),
    ):
        record[f"{name} %"] = _percent(measured.value)
        record[f"{name} ±"] = _percent(_half(measured))
    record["in doubt"] = f"! {row.warnings}" if row.warnings else ""
    record["networks"] = f"{row.robust.present} of {row.robust.expected}"
    return record


def _half(measured: Measured) -> float | None:
    if measured.value is None or measured.high is None:
        return None
    return measured.high - measured.value


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
