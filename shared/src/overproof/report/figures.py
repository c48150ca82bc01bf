"""Figures over the leaderboard, for the page and the dashboard. Percent appears only on axes.

Each figure takes the rows of one bench (equal data set, network and protocol), so all that is
drawn together may be compared. Rows of several cells get a menu, one choice a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative

from overproof.core.threat import epsilon_value
from overproof.report.standings import WHOLE_SET, Measured, Standing

HEIGHT = 440
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "star", "triangle-up", "hexagon")


def drop_rate_by_images(rows: Sequence[Standing]) -> go.Figure:
    """Drop rate against images per class, a line a method, the whole set dashed.

    Source: DD-RobustBench, figure 2.
    """
    colors = _colors(rows)

    def of_cell(cell: list[Standing]) -> list[go.Scatter]:
        sizes = _sizes(cell)
        return [
            _line(
                method,
                [str(row.images_per_class) for row in members],
                [row.drop_rate for row in members],
                colors[method],
            )
            for method, members in _by_method(cell)
        ] + [
            _level(sizes, row.drop_rate)
            for row in cell
            if row.method == WHOLE_SET and row.drop_rate.value is not None and sizes
        ]

    figure = _with_menu(_by_cell(rows), of_cell)
    sizes = _sizes(rows)
    figure.update_xaxes(
        title="images per class", type="category", categoryorder="array", categoryarray=sizes
    )
    figure.update_yaxes(title="drop rate", tickformat=".0%")
    return figure


def robust_accuracy_by_epsilon(rows: Sequence[Standing]) -> go.Figure:
    """Robust accuracy against the budget, a line for each method and size, a menu of attacks."""
    colors = _colors(rows)

    def of_attack(members: list[Standing]) -> list[go.Scatter]:
        lines = []
        for name in dict.fromkeys(map(_series, members)):
            line = sorted((row for row in members if _series(row) == name), key=_radius)
            lines.append(
                _line(
                    name,
                    [_radius(row) for row in line],
                    [row.robust for row in line],
                    colors[line[0].method],
                )
            )
        return lines

    attacked = [row for row in rows if row.attack is not None]
    figure = _with_menu(_grouped(attacked, lambda row: str(row.attack)), of_attack)
    budgets = {str(row.epsilon): _radius(row) for row in attacked}
    figure.update_xaxes(title="budget", tickvals=list(budgets.values()), ticktext=list(budgets))
    figure.update_yaxes(title="robust accuracy", tickformat=".0%", rangemode="tozero")
    return figure


def clean_against_robust(rows: Sequence[Standing]) -> go.Figure:
    """Robust against clean accuracy: up and to the right is better; a symbol a size."""
    colors = _colors(rows)
    sizes = _sizes(rows)

    def of_cell(cell: list[Standing]) -> list[go.Scatter]:
        points = []
        for row in cell:
            if row.clean.value is None or row.robust.value is None:
                continue
            size = str(row.images_per_class)
            symbol = _SYMBOLS[sizes.index(size) % len(_SYMBOLS)] if size in sizes else "circle-open"
            points.append(
                go.Scatter(
                    name=escape(_series(row)),
                    x=[row.clean.value],
                    y=[row.robust.value],
                    error_x=_error([row.clean]),
                    error_y=_error([row.robust]),
                    mode="markers",
                    marker={"color": colors[row.method], "symbol": symbol, "size": 11},
                )
            )
        return points

    figure = _with_menu(_by_cell(rows), of_cell)
    figure.update_xaxes(title="clean accuracy", tickformat=".0%")
    figure.update_yaxes(title="robust accuracy", tickformat=".0%", rangemode="tozero")
    return figure


FIGURES: dict[str, Callable[[Sequence[Standing]], go.Figure]] = {
    "Drop rate by images per class": drop_rate_by_images,
    "Robust accuracy by budget": robust_accuracy_by_epsilon,
    "Robust against clean accuracy": clean_against_robust,
}


# ---- parts -----------------------------------------------------------------------------------


def _with_menu(
    choices: dict[str, list[Standing]], draw: Callable[[list[Standing]], list[go.Scatter]]
) -> go.Figure:
    """A figure of all `choices`, of which a menu shows one at a time."""
    traces = {name: draw(members) for name, members in choices.items()}
    first = next(iter(traces), None)
    figure = go.Figure(
        [
            trace.update(visible=name == first)
            for name, of_choice in traces.items()
            for trace in of_choice
        ]
    )
    figure.update_layout(
        template="plotly_white", height=HEIGHT, margin={"t": 60, "r": 20, "b": 50, "l": 60}
    )
    if len(traces) > 1:
        buttons = [
            {
                "label": escape(shown),
                "method": "update",
                "args": [
                    {"visible": [name == shown for name in traces for _ in traces[name]]},
                    {"title.text": escape(shown)},
                ],
            }
            for shown in traces
        ]
        menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.18, "yanchor": "top"}
        figure.update_layout(updatemenus=[menu])
    if first is not None:
        figure.update_layout(title={"text": escape(first)})
    return figure


def _line(name: str, x: Sequence[Any], measured: Sequence[Measured], color: str) -> go.Scatter:
    return go.Scatter(
        name=escape(name),
        x=list(x),
        y=[number.value for number in measured],
        error_y=_error(measured),
        mode="lines+markers",
        line={"color": color},
    )


def _level(x: Sequence[str], measured: Measured) -> go.Scatter:
    # A lone size would make a line of no length, hence the marker.
    return go.Scatter(
        name=WHOLE_SET,
        x=list(x),
        y=[measured.value] * len(x),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": "#444", "dash": "dash"},
        marker={"symbol": "line-ew-open", "size": 40},
    )


def _error(measured: Sequence[Measured]) -> dict[str, Any]:
    """Whiskers over the 95 % intervals; none where there is no interval."""
    return {
        "type": "data",
        "array": [
            0.0 if number.high is None or number.value is None else number.high - number.value
            for number in measured
        ],
        "thickness": 1,
    }


def _colors(rows: Iterable[Standing]) -> dict[str, str]:
    palette = qualitative.D3
    methods = sorted({row.method for row in rows} - {WHOLE_SET})
    colors = {method: palette[i % len(palette)] for i, method in enumerate(methods)}
    return colors | {WHOLE_SET: "#444"}


def _sizes(rows: Iterable[Standing]) -> list[str]:
    sizes = {row.images_per_class for row in rows if row.images_per_class is not None}
    return [str(size) for size in sorted(sizes)]


def _series(row: Standing) -> str:
    if row.images_per_class is None:
        return row.method
    return f"{row.method}, {row.images_per_class} a class"


def _radius(row: Standing) -> float:
    return epsilon_value(row.epsilon or "0")


def _by_cell(rows: Iterable[Standing]) -> dict[str, list[Standing]]:
    return _grouped((row for row in rows if row.cell is not None), lambda row: str(row.cell))


def _by_method(rows: Iterable[Standing]) -> list[tuple[str, list[Standing]]]:
    distilled = sorted(
        (row for row in rows if row.images_per_class is not None),
        key=lambda row: (row.method, row.images_per_class),
    )
    return list(_grouped(distilled, lambda row: row.method).items())


def _grouped(rows: Iterable[Standing], key: Callable[[Standing], str]) -> dict[str, list[Standing]]:
    groups: dict[str, list[Standing]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
