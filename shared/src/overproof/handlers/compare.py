"""From the units of several groups to the metrics of their comparison: a step of the aggregator."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from overproof.catalog.metrics import (
    AUGMENTATION_ROBUST_SCORE,
    HARD_LABEL_RECOVERY,
    IMPROVEMENT_OVER_RANDOM,
    METRICS,
    RANKING_SCORE,
    metric,
)
from overproof.catalog.slices import ALL
from overproof.core.canonical import canonical_json
from overproof.core.ids import GroupId
from overproof.core.ranking import RANKING, Role
from overproof.core.states import JobKind, UnitState
from overproof.evaluation.ranking import GroupRuns, Groups
from overproof.results.views import Comparison, GroupUnits, MetricRow, MetricScope, UnitRow

_OF_INFORMATION = (HARD_LABEL_RECOVERY, IMPROVEMENT_OVER_RANDOM, RANKING_SCORE)


def compute_comparison(
    comparison: Comparison, members: Mapping[GroupId, GroupUnits]
) -> list[MetricRow]:
    """Every metric of a comparison.

    Pure, and a function of the groups' units alone, in any order.

    Args:
        comparison: what is compared.
        members: each of its groups with its units, pending ones included.

    Raises:
        ValueError: a kind of comparison that nobody knows here.
        InvalidData: an accuracy that is no fraction.
    """
    if comparison.kind != RANKING:
        raise ValueError(f"no comparison is called {comparison.kind!r}; is this version too old?")
    groups = ranked_groups(comparison, members)
    names = [*_OF_INFORMATION, *([AUGMENTATION_ROBUST_SCORE] if Role.OWN_PLAIN in groups else [])]
    return [_row(comparison, name, groups) for name in names]


def ranked_groups(comparison: Comparison, members: Mapping[GroupId, GroupUnits]) -> Groups:
    """The runs of each role of a ranking; what its metrics are functions of."""
    return {
        Role(role): runs_of(group_id, members[group_id].units)
        for role, group_id in comparison.groups.items()
    }


def runs_of(group_id: GroupId, rows: Sequence[UnitRow]) -> GroupRuns:
    """Accuracies of the networks of a group, by run.

    A run is a network, named by its seed, where each has a training set of its own or all have the
    same; where several sets have several networks, it is a set with the mean of its networks.
    """
    networks = [row for row in rows if row.kind is JobKind.TRAIN]
    by_set: dict[bytes, dict[str, float]] = {}
    for row in networks:
        of_set = by_set.setdefault(canonical_json(row.body["training_set"]), {})
        if row.state is UnitState.DONE:
            accuracy = int(row.result["clean_correct"]) / int(row.result["total"])
            of_set[str(row.body["seed"])] = accuracy
    seeds = Counter(row.body["seed"] for row in networks)
    if len(by_set) == 1 or (len(networks) == len(by_set) and max(seeds.values(), default=0) == 1):
        runs = {seed: value for of_set in by_set.values() for seed, value in of_set.items()}
    else:
        runs = {
            f"set {key.decode()}": statistics.fmean(of_set.values())
            for key, of_set in by_set.items()
            if of_set
        }
    present = sum(len(of_set) for of_set in by_set.values())
    return GroupRuns(group_id, runs, present, len(networks))


def _row(comparison: Comparison, name: str, groups: Groups) -> MetricRow:
    found = METRICS.load(name)(groups)
    info = metric(name)
    return MetricRow(
        scope=MetricScope.COMPARISON,
        subject=comparison.comparison_id,
        metric=info.name,
        slice=ALL,
        value=found.value,
        unit=info.unit,
        present=found.present,
        expected=found.expected,
        low=found.low,
        high=found.high,
        reason=found.reason,
    )
