"""The leaderboard in words and percent, the same on the console and on the page."""

from __future__ import annotations

from collections.abc import Iterable

from overproof.report.standings import WHOLE_SET, Measured, Standing

HEADERS = (
    "method",
    "images/class",
    "attack",
    "clean %",
    "robust %",
    "drop rate %",
)
NUMBERS = frozenset({"images/class", "clean %", "robust %", "drop rate %"})

LEGEND = (
    "± is half of the 95 % interval over seeds (Student's t); S1: right on the last iterate, "
    "S2: right on the clean image and on every iterate, S3: right on both. "
    "worst-case: no attack of the budget broke it; envelope: none of a smaller budget either."
)


def cells(row: Standing) -> list[str]:
    """A row of the leaderboard under `HEADERS`; what it belongs to is its `bench`."""
    return [
        row.method,
        _images_per_class(row),
        "none" if row.cell is None else f"{row.cell}:{row.semantics}",
        percent(row.clean),
        percent(row.robust) + (" !" if row.warnings else ""),
        percent(row.drop_rate),
    ]


def _images_per_class(row: Standing) -> str:
    if row.images_per_class is not None:
        return str(row.images_per_class)
    return "all" if row.method == WHOLE_SET else "-"  # nobody knows, of a network that was brought


def percent(measured: Measured) -> str:
    """`71.2 ± 1.4`, or `-` when undefined; an asterisk says that networks are missing from it."""
    if measured.value is None:
        return "-"
    text = f"{100 * measured.value:.1f}"
    if measured.high is not None:
        text += f" ± {100 * (measured.high - measured.value):.1f}"
    return text if measured.is_complete else f"{text} *"


def doubts(rows: Iterable[Standing]) -> list[str]:
    """Why numbers marked by an exclamation mark may look too good: a line for each reason."""
    lines = (
        f"{row.training_set}: {name}: {why}" for row in rows for name, why in row.doubts.items()
    )
    return list(dict.fromkeys(lines))


def breakers(rows: Iterable[Standing]) -> list[str]:
    """Which attacks made the worst cases what they are: a line for each."""
    lines = []
    for row in rows:
        attacks: dict[str, list[str]] = {}
        for attack, share in row.broken_by.items():
            if share > 0:
                attacks.setdefault(f"{share:.1%}", []).append(attack)
        if attacks:
            shares = "; ".join(f"{share} by {', '.join(names)}" for share, names in attacks.items())
            lines.append(f"{row.training_set}: {row.cell}: of what any attack broke, {shares}")
    return lines


def notes(rows: Iterable[Standing]) -> list[str]:
    """Why numbers are undefined or incomplete: a line for each training set and reason."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        numbers = [("clean", row.clean)]
        if row.cell is not None:
            numbers += [(row.cell, row.robust), (row.cell, row.drop_rate)]
        for where, measured in numbers:
            if not measured.is_complete:
                key = (row.training_set, measured.reason or "not yet measured")
                found.setdefault(key, {})[where] = None
    return [f"{name}: {reason} ({', '.join(where)})" for (name, reason), where in found.items()]
