"""Figures over the leaderboard, for the page and the dashboard. Percent appears only on axes.

Each figure takes the rows of one bench (equal data set, network and protocol), so all that is
drawn together may be compared. Rows of several cells get a menu, one choice a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

import plotly.graph_objects as go
from plotly.colors import qualitative

from overproof.core.threat import epsilon_value
from overproof.evaluation import pareto
from overproof.report.ranking import Ranked
from overproof.report.standings import WHOLE_SET, Measured, Standing

T = TypeVar("T")

HEIGHT = 440
_COLORS = qualitative.D3
_WHOLE_SET_COLOR = "#444"
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "star", "triangle-up", "hexagon")
_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")


def drop_rate_by_images(rows: Sequence[Standing]) -> go.Figure:
    """Drop rate against images per class, a line a method, the whole set dashed.

    Source: DD-RobustBench, figure 2.
    """
    style = _Style.of(rows)

    def of_cell(cell: list[Standing]) -> list[go.Scatter]:
        sizes = [str(size) for size in _sizes(cell)]
        lines = [
            _line(
                method,
                [str(row.images_per_class) for row in members],
                [row.drop_rate for row in members],
                color=style.color(members[0]),
            )
            for method, members in _by_method(cell)
        ]
        levels = [
            _level(sizes, row.drop_rate)
            for row in cell
            if row.method == WHOLE_SET and row.drop_rate.value is not None and sizes
        ]
        return lines + levels

    figure = _with_menu(_by_cell(rows), of_cell)
    order = [str(size) for size in _sizes(rows)]
    figure.update_xaxes(
        title="images per class", type="category", categoryorder="array", categoryarray=order
    )
    figure.update_yaxes(title="drop rate", tickformat=".0%")
    return figure


def robust_accuracy_by_epsilon(rows: Sequence[Standing]) -> go.Figure:
    """Accuracy against the budget, a line for each training set, a menu of attacks.

    The budget 0 is the clean accuracy.
    """
    style = _Style.of(rows)

    def of_attack(members: list[Standing]) -> list[go.Scatter]:
        lines = []
        for name, unordered in _grouped(members, lambda row: row.training_set).items():
            line = sorted(unordered, key=_radius)
            lines.append(
                _line(
                    name,
                    [0.0, *map(_radius, line)],
                    [line[0].clean, *(row.robust for row in line)],
                    color=style.color(line[0]),
                    dash=style.dash(line[0]),
                    symbol=style.symbol(line[0]),
                )
            )
        return lines

    attacked = sorted((row for row in rows if row.attack is not None), key=_radius)
    figure = _with_menu(_grouped(attacked, lambda row: str(row.attack)), of_attack)
    budgets = {"0": 0.0} | {str(row.epsilon): _radius(row) for row in attacked}
    figure.update_xaxes(title="budget", tickvals=list(budgets.values()), ticktext=list(budgets))
    figure.update_yaxes(title="accuracy", tickformat=".0%", rangemode="tozero")
    return figure


def clean_against_robust(rows: Sequence[Standing]) -> go.Figure:
    """Robust against clean accuracy: up and to the right is better."""
    style = _Style.of(rows)

    def of_cell(cell: list[Standing]) -> list[go.Scatter]:
        return [
            go.Scatter(
                name=escape(row.training_set),
                x=[row.clean.value],
                y=[row.robust.value],
                error_x=_error([row.clean]),
                error_y=_error([row.robust]),
                mode="markers",
                marker={"color": style.color(row), "symbol": style.symbol(row), "size": 11},
            )
            for row in cell
            if row.clean.value is not None and row.robust.value is not None
        ]

    figure = _with_menu(_by_cell(rows), of_cell)
    figure.update_xaxes(title="clean accuracy", tickformat=".0%")
    figure.update_yaxes(title="robust accuracy", tickformat=".0%", rangemode="tozero")
    return figure


def score_against_drop_rate(rows: Sequence[Ranked]) -> go.Figure:
    """Informativeness against robustness: left and up is better, the Pareto front is a line.

    A set is on the front when none of the others is both more informative and more robust.
    """
    methods = sorted({row.method for row in rows})

    def of_cell(cell: str) -> list[go.Scatter]:
        known = [
            (row, row.drop_rates[cell], row.drop_rates[cell].value, row.score.value)
            for row in rows
            if cell in row.drop_rates
        ]
        drawn = [(row, drop, x, y) for row, drop, x, y in known if x is not None and y is not None]
        best = pareto.front([(x, y) for _, _, x, y in drawn])
        line = go.Scatter(
            name="Pareto front",
            x=[drawn[i][2] for i in best],
            y=[drawn[i][3] for i in best],
            mode="lines",
            line={"color": _WHOLE_SET_COLOR, "dash": "dash", "shape": "vh"},
        )
        points = [
            go.Scatter(
                name=escape(row.method),
                x=[x],
                y=[y],
                error_x=_error([drop]),
                error_y=_error([row.score]),
                mode="markers",
                marker={"color": _COLORS[methods.index(row.method) % len(_COLORS)], "size": 11},
            )
            for row, drop, x, y in drawn
        ]
        return [*points, line] if points else []

    names = sorted({name for row in rows for name in row.drop_rates})
    figure = _with_menu({name: name for name in names}, of_cell)
    figure.update_xaxes(title="drop rate", tickformat=".0%")
    figure.update_yaxes(title="DDRS")
    return figure


FIGURES: dict[str, Callable[[Sequence[Standing]], go.Figure]] = {
    "Drop rate by images per class": drop_rate_by_images,
    "Robust accuracy by budget": robust_accuracy_by_epsilon,
    "Robust against clean accuracy": clean_against_robust,
}


# ---- parts -----------------------------------------------------------------------------------


def _with_menu(choices: dict[str, T], draw: Callable[[T], list[go.Scatter]]) -> go.Figure:
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
                "method": "restyle",
                "args": [{"visible": [name == shown for name in traces for _ in traces[name]]}],
            }
            for shown in traces
        ]
        menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.16, "yanchor": "top"}
        figure.update_layout(updatemenus=[menu])
    elif first is not None:
        figure.update_layout(title={"text": escape(first)})
    return figure


@dataclass(frozen=True)
class _Style:
    """A colour for each method, a symbol and a dash for each size: the same in every figure."""

    methods: Sequence[str]
    sizes: Sequence[int]

    @classmethod
    def of(cls, rows: Sequence[Standing]) -> _Style:
        return cls(sorted({row.method for row in rows} - {WHOLE_SET}), _sizes(rows))

    def color(self, row: Standing) -> str:
        if row.method == WHOLE_SET:
            return _WHOLE_SET_COLOR
        return str(_COLORS[self.methods.index(row.method) % len(_COLORS)])

    def symbol(self, row: Standing) -> str:
        return _SYMBOLS[self._size(row) % len(_SYMBOLS)]

    def dash(self, row: Standing) -> str:
        return _DASHES[self._size(row) % len(_DASHES)]

    def _size(self, row: Standing) -> int:
        return 0 if row.images_per_class is None else self.sizes.index(row.images_per_class)


def _line(
    name: str,
    x: Sequence[Any],
    measured: Sequence[Measured],
    *,
    color: str,
    dash: str = "solid",
    symbol: str = "circle",
) -> go.Scatter:
    return go.Scatter(
        name=escape(name),
        x=list(x),
        y=[number.value for number in measured],
        error_y=_error(measured),
        mode="lines+markers",
        line={"color": color, "dash": dash},
        marker={"symbol": symbol, "size": 8},
    )


def _level(x: Sequence[str], measured: Measured) -> go.Scatter:
    # A lone size would make a line of no length, hence the marker.
    return go.Scatter(
        name=WHOLE_SET,
        x=list(x),
        y=[measured.value] * len(x),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": _WHOLE_SET_COLOR, "dash": "dash"},
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


def _sizes(rows: Iterable[Standing]) -> list[int]:
    return sorted({row.images_per_class for row in rows if row.images_per_class is not None})


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
