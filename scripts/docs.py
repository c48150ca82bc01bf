"""Writes docs/settings.md and docs/metrics.md: what the code says, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from overproof.runtime.metrics import ALL
from overproof.runtime.settings import settings_table

DOCS = Path(__file__).resolve().parents[1] / "docs"

_HEAD = "<!-- Written by `make docs`; change the code, not this file. -->\n"

_SETTINGS = """# Settings

Every process reads its settings once, at its start, from environment variables. A variable that is
empty counts as unset. Values that cannot be used are listed all at once, with exit code 2. Run
`overproof doctor` to see what the settings lead to.

"""

_METRICS = """# Prometheus metrics

A worker or an aggregator with `OVERPROOF_METRICS_PORT` set serves these at `/metrics`, beside
`/live` and `/ready`. `kind` is distill, train or attack. No label ever holds the id of a job, so
there are few series. Beside them stand the usual `process_*` and `python_info`.

What a leaderboard shows (accuracies, drop rates) are metrics of another sort: they are rows of the
database, listed by `overproof plugins list metrics`.

"""


def settings_page() -> str:
    """The text of docs/settings.md."""
    rows = [
        (_code(row.variable), _code(row.default), _escaped(row.help)) for row in settings_table()
    ]
    return _HEAD + _SETTINGS + _table(("variable", "default", "meaning"), rows)


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    rows = [
        (
            _code(metric.name),
            metric.kind,
            ", ".join(_code(label) for label in metric.labels),
            _escaped(metric.help),
        )
        for metric in ALL
    ]
    return _HEAD + _METRICS + _table(("name", "type", "labels", "meaning"), rows)


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page}


def main() -> None:
    """Write all pages."""
    DOCS.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
