"""The ranking of distilled sets as flat rows, and what keeps rows from being ranked together."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overproof.catalog.metrics import (
    AUGMENTATION_ROBUST_SCORE,
    HARD_LABEL_RECOVERY,
    IMPROVEMENT_OVER_RANDOM,
    RANKING_SCORE,
)
from overproof.catalog.slices import ALL
from overproof.core.ids import ExperimentId
from overproof.core.ranking import RANKING, Role
from overproof.errors import InvalidSpec
from overproof.evaluation.ranking import augmentation_robust_score, ranking_score
from overproof.evaluation.robustness import SeedMean
from overproof.handlers.compare import ranked_groups
from overproof.report.standings import (
    Measured,
    Standing,
    dataset_label,
    method_label,
    network_label,
    protocol_label,
)
from overproof.report.text import percent
from overproof.results.repository import ResultsRepository
from overproof.results.views import ComparisonRow

WEIGHT, GAMMA = 0.5, 0.5  # of the scores that are stored

HEADERS = ("place", "method", "HLR %", "IOR %", "DDRS", "ARS")
NUMBERS = frozenset({"place", "HLR %", "IOR %", "DDRS", "ARS"})
LEGEND = (
    "HLR: accuracy that the set loses against the whole one, both with hard labels (lower is "
    "better); IOR: accuracy that it gains over random images (higher is better); DDRS and ARS: "
    "scores in [0, 1] (higher is better). ± is half of the 95 % interval over runs."
)

_MEASURES = ("hlr", "ior", "score", "augmentation_score")
_PARTS = ("low", "high", "present", "expected", "reason")


@dataclass(frozen=True)
class Ranked:
    """A distilled set in a ranking.

    Attributes:
        comparison_id, group_id: where its numbers are, and those of the set by its own protocol.
        method: with its non-default parameters.
        conditions: what must be equal for rows to be ranked together: name → value.
        hlr, ior: fractions; `score` and `augmentation_score` are in [0, 1].
        weight, gamma: w and γ of the scores.
        drop_rates: cell (`pgd-linf@8/255`) → drop rate of the set by its own protocol.
    """

    comparison_id: str
    group_id: str
    method: str
    conditions: Mapping[str, str]
    hlr: Measured
    ior: Measured
    score: Measured
    augmentation_score: Measured
    weight: float = WEIGHT
    gamma: float = GAMMA
    drop_rates: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def bench(self) -> str:
        """`digits · 10 a class · convnet · dsa · ddk · ddk[epochs=200]`."""
        return " · ".join(self.conditions.values())


def rankings(
    repository: ResultsRepository,
    standings: Sequence[Standing],
    experiment_id: ExperimentId | None = None,
    *,
    weight: float = WEIGHT,
    gamma: float = GAMMA,
) -> list[Ranked]:
    """The rankings of one experiment or of all, the best of each bench first.

    Scores of the usual weights are those that the aggregator has stored. Others are computed from
    the same runs by the same functions.

    Args:
        repository: where they are.
        standings: rows of the leaderboard, for the drop rates.
        experiment_id: only those whose groups are all of the experiment.
        weight: w of DDRS.
        gamma: γ of ARS.

    Raises:
        InvalidData: `weight` or `gamma` outside [0, 1].
    """
    drop_rates: dict[str, dict[str, Measured]] = {}
    for standing in standings:
        if standing.cell is not None:
            of_group = drop_rates.setdefault(standing.group_id, {})
            of_group[standing.cell] = standing.drop_rate
    found = []
    for row in repository.comparisons(RANKING, experiment_id):
        own = row.comparison.groups[Role.OWN]
        score, augmented = _scores(repository, row, weight, gamma)
        found.append(
            Ranked(
                comparison_id=row.comparison.comparison_id,
                group_id=own,
                method=method_label(row.bodies[Role.OWN]),
                conditions=_conditions(row),
                hlr=_stored(row, HARD_LABEL_RECOVERY),
                ior=_stored(row, IMPROVEMENT_OVER_RANDOM),
                score=score,
                augmentation_score=augmented,
                weight=weight,
                gamma=gamma,
                drop_rates=drop_rates.get(own, {}),
            )
        )
    return sorted(found, key=_order)


def by_bench(rows: Iterable[Ranked]) -> dict[str, list[Ranked]]:
    """`rows` in groups that may be ranked together, in the order of `rows`."""
    benches: dict[str, list[Ranked]] = {}
    for row in rows:
        benches.setdefault(row.bench, []).append(row)
    return benches


def places(rows: Sequence[Ranked]) -> list[int | None]:
    """The place of each row by its score, 1 for the highest; None for those without a score.

    Raises:
        InvalidSpec: the rows were made under different conditions; it says which differ.
    """
    different = differences(rows)
    if different:
        raise InvalidSpec(different, "a ranking of rows that are not comparable")
    scores = [row.score.value for row in rows]
    return [
        None if score is None else 1 + sum(other is not None and other > score for other in scores)
        for score in scores
    ]


def differences(rows: Sequence[Ranked]) -> list[str]:
    """Why rows cannot be ranked together, a line for each condition; none if they can."""
    lines = []
    for name in rows[0].conditions if rows else ():
        values = list(dict.fromkeys(row.conditions[name] for row in rows))
        if len(values) > 1:
            lines.append(f"{name}: {' and '.join(values)}")
    return lines


def cells(rows: Sequence[Ranked]) -> list[list[str]]:
    """Rows of one bench under `HEADERS`.

    Raises:
        InvalidSpec: see `places`.
    """
    return [
        [
            "-" if place is None else str(place),
            row.method,
            percent(row.hlr),
            percent(row.ior),
            _score(row.score),
            _score(row.augmentation_score),
        ]
        for row, place in zip(rows, places(rows), strict=True)
    ]


def to_records(rows: Sequence[Ranked]) -> list[dict[str, Any]]:
    """`rows` as flat plain JSON, for files: `hlr`, `hlr_low`, `hlr_high`, …"""
    return [_record(row) for row in rows]


def to_csv(rows: Sequence[Ranked]) -> str:
    """`rows` as CSV with a header; undefined numbers are empty."""
    records = to_records(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def notes(rows: Iterable[Ranked]) -> list[str]:
    """Why numbers are undefined or incomplete: a line for each set and reason."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for measured in (row.hlr, row.ior):
            if not measured.is_complete:
                found[row.method, measured.reason or "not yet measured"] = None
    return [f"{method}: {reason}" for method, reason in found]


def _scores(
    repository: ResultsRepository, row: ComparisonRow, weight: float, gamma: float
) -> tuple[Measured, Measured]:
    paired = Role.OWN_PLAIN in row.comparison.groups
    none = Measured(reason="no networks without augmentation; set ranking.augmentation")
    if (weight, gamma) == (WEIGHT, GAMMA):
        return _stored(row, RANKING_SCORE), (
            _stored(row, AUGMENTATION_ROBUST_SCORE) if paired else none
        )
    groups = ranked_groups(row.comparison, repository.members(row.comparison))
    return _measured(ranking_score(groups, weight)), (
        _measured(augmentation_robust_score(groups, gamma)) if paired else none
    )


def _stored(row: ComparisonRow, metric: str) -> Measured:
    return Measured.of(row.metrics.get((metric, ALL)))


def _measured(found: SeedMean) -> Measured:
    return Measured(found.value, found.low, found.high, found.present, found.expected, found.reason)


def _conditions(row: ComparisonRow) -> dict[str, str]:
    own = row.bodies[Role.OWN]
    return {
        "data set": dataset_label(own["dataset"]),
        "images per class": f"{own['images_per_class']} a class",
        "network": network_label(own),
        "protocol": protocol_label(own),
        "protocol with hard labels": protocol_label(row.bodies[Role.HARD]),
        "protocol of the whole set": protocol_label(row.bodies[Role.WHOLE]),
    }


def _order(row: Ranked) -> tuple[Any, ...]:
    score = row.score.value
    return (row.bench, score is None, -(score or 0.0), row.method, row.comparison_id)


def _score(measured: Measured) -> str:
    if measured.value is None:
        return "-"
    text = f"{measured.value:.4f}"
    if measured.high is not None and measured.low is not None:
        text += f" ± {(measured.high - measured.low) / 2:.4f}"
    return text if measured.is_complete else f"{text} *"


def _record(row: Ranked) -> dict[str, Any]:
    record: dict[str, Any] = {
        **{name.replace(" ", "_"): value for name, value in row.conditions.items()},
        "method": row.method,
        "comparison_id": row.comparison_id,
        "group_id": row.group_id,
        "weight": row.weight,
        "gamma": row.gamma,
    }
    for name in _MEASURES:
        measured: Measured = getattr(row, name)
        record[name] = measured.value
        record |= {f"{name}_{part}": getattr(measured, part) for part in _PARTS}
    return record
