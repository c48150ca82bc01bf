"""One HTML file with everything in it: opens anywhere, needs no server and no network.

Names in it come from users, so every text is escaped on its way in; there is no other way in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from overproof.report import beside, ranking
from overproof.report.beside import Beside
from overproof.report.figures import FIGURES, score_against_drop_rate
from overproof.report.ranking import Ranked
from overproof.report.standings import Standing, by_bench, to_csv, to_json
from overproof.report.text import HEADERS, LEGEND, NUMBERS, breakers, cells, doubts, notes
from overproof.results.views import UnitRow

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1b1f24; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 14px; } .scroll { overflow-x: auto; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #d9dee3; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font-size: 13px; } pre { background: #f5f7f9; padding: 1rem; overflow-x: auto; }
.note { color: #57606a; font-size: 13px; } a.button { margin-right: 1rem; }
summary { cursor: pointer; }
"""

_PLOT_CONFIG = {"displaylogo": False, "responsive": True}


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a page come from.

    Attributes:
        facts: name → value, shown as a list: experiment id, versions, devices.
        spec: the experiment as submitted, None for a page over all experiments.
        units: the units behind the numbers.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None
    units: Sequence[UnitRow] = ()


def render_page(
    title: str,
    rows: Sequence[Standing],
    provenance: Provenance,
    *,
    generated_at: float,
    ranked: Sequence[Ranked] = (),
    published: Sequence[Beside] = (),
) -> str:
    """The page as one HTML document of about 5 MB, most of it the drawing library.

    Args:
        title: heading; any text.
        rows: the leaderboard, see `standings`.
        provenance: shown below the figures.
        generated_at: seconds since the epoch.
        ranked: distilled sets with their scores, see `ranking`.
        published: measured numbers with those of papers, see `beside`.
    """
    moment = datetime.fromtimestamp(generated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">Written {moment}.</p>',
        *_results(rows),
        *_rankings(ranked),
        *_published(published),
        "<h2>Provenance</h2>",
        *_provenance(provenance),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            *body,
            "</body></html>",
        ]
    )


def _results(rows: Sequence[Standing]) -> Iterator[str]:
    if not rows:
        yield "<p>No results yet.</p>"
        return
    yield f'<p class="note">{escape(LEGEND)}</p>'
    yield _download("leaderboard.csv", "text/csv", to_csv(rows))
    yield _download("leaderboard.json", "application/json", to_json(rows))
    for bench, members in by_bench(rows).items():
        yield f"<h2>{escape(bench)}</h2>"
        yield _table(HEADERS, [cells(row) for row in members])
        incomplete = "".join(f"<li>{escape(note)}</li>" for note in notes(members))
        if incomplete:
            yield f'<p class="note">* not complete:</p><ul class="note">{incomplete}</ul>'
        doubtful = "".join(f"<li>{escape(doubt)}</li>" for doubt in doubts(members))
        if doubtful:
            yield f'<p class="note">! in doubt:</p><ul class="note">{doubtful}</ul>'
        parts = "".join(f"<li>{escape(line)}</li>" for line in breakers(members))
        if parts:
            yield f'<p class="note">Worst cases:</p><ul class="note">{parts}</ul>'
        if any(row.cell is not None for row in members):
            yield from _figures(members)


def _published(rows: Sequence[Beside]) -> Iterator[str]:
    if rows:
        yield "<h2>Beside published numbers</h2>"
        yield f'<p class="note">{escape(beside.LEGEND)}</p>'
        yield _table(beside.HEADERS, beside.cells(rows), beside.NUMBERS)


def _rankings(rows: Sequence[Ranked]) -> Iterator[str]:
    if not rows:
        return
    yield "<h2>Ranking</h2>"
    yield f'<p class="note">{escape(ranking.LEGEND)}</p>'
    yield _download("ranking.csv", "text/csv", ranking.to_csv(rows))
    apart = "; ".join(ranking.differences(rows))
    if apart:
        yield f'<p class="note">Ranked apart, since they differ in {escape(apart)}.</p>'
    for bench, members in ranking.by_bench(rows).items():
        yield f"<h3>{escape(bench)}</h3>"
        yield _table(ranking.HEADERS, ranking.cells(members), ranking.NUMBERS)
        incomplete = "".join(f"<li>{escape(note)}</li>" for note in ranking.notes(members))
        if incomplete:
            yield f'<p class="note">* not complete:</p><ul class="note">{incomplete}</ul>'
        if any(row.drop_rates for row in members):
            yield "<h4>Informativeness against robustness</h4>"
            yield _drawn(score_against_drop_rate(members))


def _figures(rows: Sequence[Standing]) -> Iterator[str]:
    for title, draw in FIGURES.items():
        yield f"<h3>{escape(title)}</h3>{_drawn(draw(rows))}"


def _drawn(figure: go.Figure) -> str:
    drawn: str = figure.to_html(full_html=False, include_plotlyjs=False, config=_PLOT_CONFIG)
    return drawn


def _download(name: str, media_type: str, text: str) -> str:
    encoded = base64.b64encode(text.encode()).decode()
    return (
        f'<a class="button" download="{name}" href="data:{media_type};base64,{encoded}">{name}</a>'
    )


def _provenance(provenance: Provenance) -> Iterator[str]:
    yield _table(("fact", "value"), list(provenance.facts.items()))
    if provenance.spec is not None:
        spec = json.dumps(provenance.spec, indent=2, ensure_ascii=False)
        yield f"<h3>Spec</h3><pre>{escape(spec)}</pre>"
    if provenance.units:
        rows = [
            (unit.unit_id, unit.task, unit.body.get("seed", ""), unit.state, unit.job_id)
            for unit in provenance.units
        ]
        table = _table(("unit", "task", "seed", "state", "job"), rows)
        yield f"<details><summary>{len(rows)} units</summary>{table}</details>"


def _table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[str] = NUMBERS
) -> str:
    """A table of escaped texts; columns of `numbers` are set right."""
    kinds = [' class="number"' if header in numbers else "" for header in headers]
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(str(value))}</td>" for kind, value in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
