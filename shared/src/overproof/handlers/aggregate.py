"""From the outcomes of a group's units to its metrics: no job, just a step of the aggregator."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overproof.catalog.attacks import ATTACKS
from overproof.catalog.metrics import METRICS, MetricInfo, metric
from overproof.catalog.slices import cell_label
from overproof.core.canonical import canonical_json
from overproof.core.ids import GroupId, UnitId, group_id_of
from overproof.core.semantics import Semantics
from overproof.core.spec import CellBody
from overproof.core.states import JobKind, UnitState
from overproof.errors import UnknownPlugin
from overproof.evaluation.counts import CellCounts, CleanCounts, NetworkCounts
from overproof.evaluation.robustness import Number, Numbers, mean_over_seeds
from overproof.experiments.units import make_unit
from overproof.results.views import MetricRow, MetricScope, UnitRow

_SCOPES = {MetricScope.NETWORK, MetricScope.DISTILLED_SET}


def compute_metrics(group: Mapping[str, Any], rows: Sequence[UnitRow]) -> list[MetricRow]:
    """Every registered metric of a group and of each of its networks.

    Pure, and a function of the rows alone: computing again after any crash or repeated event
    gives the same numbers.

    Args:
        group: what the units have in common; names the subject of the group's numbers.
        rows: all units of the group, pending ones included, so that what is missing is counted.

    Returns:
        One row for each network and slice that is measured, and one for each slice of the group
        that is wanted, measured or not.
    """
    networks = _networks(rows)
    metrics: list[MetricRow] = []
    for name in METRICS.names():
        info = metric(name)
        if _SCOPES.isdisjoint(info.scopes):
            continue
        compute = METRICS.load(name)
        numbers = [compute(network.counts) for network in networks]
        if MetricScope.NETWORK in info.scopes:
            metrics.extend(_network_rows(info, networks, numbers))
        if MetricScope.DISTILLED_SET in info.scopes:
            metrics.extend(_group_rows(info, group_id_of(group), networks, numbers))
    return metrics


@dataclass(frozen=True)
class _Network:
    """A network of the group, what it was trained on, and its counts."""

    unit_id: UnitId
    training_set: bytes
    counts: NetworkCounts


def _networks(rows: Iterable[UnitRow]) -> list[_Network]:
    by_label: dict[str, dict[str, list[UnitRow]]] = {}
    for row in rows:
        if row.kind is JobKind.ATTACK:
            body = CellBody.model_validate(row.body)
            label = cell_label(body.attack, body.threat.epsilon)
            by_label.setdefault(body.victim, {}).setdefault(label, []).append(row)
    cells = {
        victim: {label: _cell_counts(_newest(same)) for label, same in of_victim.items()}
        for victim, of_victim in by_label.items()
    }
    return [
        _Network(
            row.unit_id,
            canonical_json(row.body["training_set"]),
            NetworkCounts(_clean_counts(row), cells.get(row.unit_id, {})),
        )
        for row in rows
        if row.kind is JobKind.TRAIN
    ]


def _newest(rows: Sequence[UnitRow]) -> UnitRow:
    """Of the cells with one label, the one that attacks as of today would make.

    There are several after a change of what an attack does. Where none is of today, one that is
    done stands for the rest.
    """
    if len(rows) == 1:
        return rows[0]
    return max(rows, key=lambda row: (_is_of_today(row), row.state is UnitState.DONE, row.unit_id))


def _is_of_today(row: UnitRow) -> bool:
    body = CellBody.model_validate(row.body)
    try:
        return make_unit(row.task, body, plugins=[(ATTACKS, body.attack)]).id == row.unit_id
    except UnknownPlugin:
        return False


def _clean_counts(row: UnitRow) -> CleanCounts | None:
    if row.state is not UnitState.DONE:
        return None
    return CleanCounts(
        int(row.result["clean_correct"]),
        int(row.result["total"]),
        last=row.result.get("last_correct"),
        best=row.result.get("best_correct"),
    )


def _cell_counts(row: UnitRow) -> CellCounts | None:
    if row.state is not UnitState.DONE:
        return None
    invalid = row.result.get("invalid")
    return CellCounts(
        total=int(row.result["total"]),
        clean_correct=int(row.result["clean_correct"]),
        robust={}
        if invalid
        else {each: int(row.result[f"robust_{each.lower()}"]) for each in Semantics},
        invalid=invalid,
        flat_gradients=int(row.result.get("flat_gradients", 0)),
        broken_by=row.result.get("broken_by", {}),
        classes=int(row.result.get("classes", 0)),
        probabilities=bool(row.result.get("probabilities", False)),
        notes=tuple(row.result.get("notes", ())),
        survivors=_bits(row.result.get("survivors")),
    )


def _bits(encoded: str | None) -> int | None:
    return None if encoded is None else int.from_bytes(b64decode(encoded), "big")


def _network_rows(
    info: MetricInfo, networks: Sequence[_Network], numbers: Sequence[Numbers]
) -> Iterator[MetricRow]:
    for network, of_network in zip(networks, numbers, strict=True):
        for slice_name, number in of_network.items():
            if number is not None:
                yield MetricRow(
                    scope=MetricScope.NETWORK,
                    subject=network.unit_id,
                    metric=info.name,
                    slice=slice_name,
                    value=number.value,
                    unit=info.unit,
                    present=int(number.value is not None),
                    expected=1,
                    reason=number.reason,
                )


def _group_rows(
    info: MetricInfo, group_id: GroupId, networks: Sequence[_Network], numbers: Sequence[Numbers]
) -> Iterator[MetricRow]:
    for slice_name in sorted({name for of_network in numbers for name in of_network}):
        sets: dict[bytes, list[Number | None]] = {}
        for network, of_network in zip(networks, numbers, strict=True):
            if slice_name in of_network:
                sets.setdefault(network.training_set, []).append(of_network[slice_name])
        mean = mean_over_seeds(list(sets.values()))
        yield MetricRow(
            scope=MetricScope.DISTILLED_SET,
            subject=group_id,
            metric=info.name,
            slice=slice_name,
            value=mean.value,
            unit=info.unit,
            present=mean.present,
            expected=mean.expected,
            low=mean.low,
            high=mean.high,
            reason=_told(sets.values()) or mean.reason,
        )


def _told(sets: Iterable[Sequence[Number | None]]) -> str | None:
    """What the first network says beside its number, as warnings do."""
    numbers = (number for of_set in sets for number in of_set if number is not None)
    return next((each.reason for each in numbers if each.value is not None and each.reason), None)
