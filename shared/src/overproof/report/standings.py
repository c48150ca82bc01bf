"""The leaderboard as flat rows: one for each group of networks and attack cell.

Console, page, files and dashboard all show these rows. Numbers stay fractions here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.metrics import (
    BREAKING_SHARE,
    CLEAN_ACCURACY,
    DROP_RATE,
    RELIABILITY_WARNING,
    ROBUST_ACCURACY,
)
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.slices import (
    ALL,
    BEST,
    ENVELOPE,
    LAST,
    WORST_CASE,
    Cell,
    Slice,
    plugin_label,
)
from overproof.catalog.teaching import TaughtParams
from overproof.core.registry import Registry
from overproof.core.semantics import Semantics
from overproof.core.spec import PluginRef
from overproof.core.threat import epsilon_value
from overproof.results.views import LeaderboardRow, MetricRow

WHOLE_SET = "whole set"

_FACTS = (
    "dataset",
    "method",
    "images_per_class",
    "network",
    "protocol",
    "attack",
    "epsilon",
    "semantics",
    "warnings",
    "group_id",
)
_MEASURES = ("clean", "last", "best", "robust", "drop_rate")
_PARTS = ("low", "high", "present", "expected", "reason")
COLUMNS = (
    *_FACTS,
    *(f"{name}{part}" for name in _MEASURES for part in ("", *(f"_{part}" for part in _PARTS))),
)


@dataclass(frozen=True)
class Measured:
    """One number of a row.

    Attributes:
        value: a fraction, None when undefined; then `reason` says why.
        low, high: 95 % interval over seeds, None where there is none.
        present, expected: networks in the mean, and networks that belong to it.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    present: int = 0
    expected: int = 0
    reason: str | None = "not yet measured"

    @classmethod
    def of(cls, row: MetricRow | None) -> Measured:
        """The number of a stored row; None stands for one that was not yet computed."""
        if row is None:
            return cls()
        return cls(row.value, row.low, row.high, row.present, row.expected, row.reason)

    @property
    def is_complete(self) -> bool:
        """Whether every network that belongs to the number is in it."""
        return self.present == self.expected > 0


@dataclass(frozen=True)
class Standing:
    """A group of networks under one attack cell.

    Attributes:
        method: distillation method with its non-default parameters, or `whole set`.
        images_per_class: None for the whole set.
        attack, epsilon, semantics: None for a group that is not attacked.
        doubts: why the robust accuracy is in doubt: a check and what it concerns, as
            `weak-cross-entropy:linf@8/255`, → what it found, see `evaluation.reliability`. A doubt
            about any of the networks is one about the group.
        broken_by: of the worst case over attacks, attack → share of the broken samples that it
            broke by itself, the largest first.
        last, best: clean accuracy after the last epoch, and the highest of those that were
            looked at: the best of several tries on the test set, so too high.
    """

    group_id: str
    dataset: str
    method: str
    images_per_class: int | None
    network: str
    protocol: str
    attack: str | None
    epsilon: str | None
    semantics: str | None
    clean: Measured
    robust: Measured
    drop_rate: Measured
    last: Measured = Measured()
    best: Measured = Measured()
    doubts: Mapping[str, str] = field(default_factory=dict)
    broken_by: Mapping[str, float] = field(default_factory=dict)

    @property
    def warnings(self) -> str:
        """Names of the doubts: `flat-gradients; near-chance`."""
        return "; ".join(name.partition(":")[0] for name in self.doubts)

    @property
    def cell(self) -> str | None:
        """`pgd-linf@8/255`, None for a group that is not attacked."""
        return None if self.attack is None else f"{self.attack}@{self.epsilon}"

    @property
    def training_set(self) -> str:
        """What the networks were trained on: `random, 10 a class`, or `whole set`."""
        if self.images_per_class is None:
            return self.method
        return f"{self.method}, {self.images_per_class} a class"

    @property
    def bench(self) -> str:
        """What must be equal for rows to be compared: data set, network and protocol."""
        return f"{self.dataset} · {self.network} · {self.protocol}"


def standings(
    rows: Iterable[LeaderboardRow], semantics: Semantics = Semantics.S2
) -> list[Standing]:
    """Rows of the leaderboard under one meaning of robust.

    Order: comparable rows together (data set, network, protocol, attack, budget), the worst case
    over attacks before single attacks, the most robust first, those without a number last.
    """
    flat = [standing for row in rows for standing in _of_group(row, semantics)]
    return sorted(flat, key=_order)


def by_bench(rows: Iterable[Standing]) -> dict[str, list[Standing]]:
    """`rows` in groups that may be compared, in the order of `rows`."""
    benches: dict[str, list[Standing]] = {}
    for row in rows:
        benches.setdefault(row.bench, []).append(row)
    return benches


def to_records(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    """`rows` as flat plain JSON, for files: `clean`, `clean_low`, `clean_high`, …"""
    return [_record(row) for row in rows]


def to_csv(rows: Sequence[Standing]) -> str:
    """`rows` as CSV with a header; undefined numbers are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_records(rows))
    return text.getvalue()


def to_json(rows: Sequence[Standing]) -> str:
    """`rows` as a JSON array."""
    return json.dumps(to_records(rows), indent=1, allow_nan=False)


def dataset_label(dataset: Mapping[str, Any]) -> str:
    """Name, with version and subset where they matter: `cifar-10@1f2e3d4c (50 a class)`."""
    version = dataset.get("version") or ""
    name = dataset["name"] if version.startswith("bundled-") else f"{dataset['name']}@{version[:8]}"
    subsets = [
        (dataset.get("subset_per_class"), "a class"),
        (dataset.get("test_subset_per_class"), "a class tested"),
    ]
    shown = ", ".join(f"{count} {what}" for count, what in subsets if count is not None)
    return f"{name} ({shown})" if shown else name


def _of_group(row: LeaderboardRow, semantics: Semantics) -> list[Standing]:
    base = Standing(
        group_id=row.group_id,
        dataset=dataset_label(row.group["dataset"]),
        method=method_label(row.group),
        images_per_class=row.group["images_per_class"],
        network=network_label(row.group),
        protocol=protocol_label(row.group),
        attack=None,
        epsilon=None,
        semantics=None,
        clean=Measured.of(row.metrics.get((CLEAN_ACCURACY, ALL))),
        last=Measured.of(row.metrics.get((CLEAN_ACCURACY, LAST))),
        best=Measured.of(row.metrics.get((CLEAN_ACCURACY, BEST))),
        robust=Measured(reason="not attacked"),
        drop_rate=Measured(reason="not attacked"),
    )
    slices = [Slice.parse(name) for metric, name in row.metrics if metric == ROBUST_ACCURACY]
    return [
        replace(
            base,
            attack=cell.attack,
            epsilon=cell.epsilon,
            semantics=str(cell.semantics),
            robust=Measured.of(row.metrics.get((ROBUST_ACCURACY, str(cell)))),
            drop_rate=Measured.of(row.metrics.get((DROP_RATE, str(cell)))),
            doubts=_doubts(row, cell),
            broken_by=_broken_by(row, cell),
        )
        for cell in slices
        if cell.semantics is semantics
    ] or [base]


def _doubts(row: LeaderboardRow, cell: Slice) -> dict[str, str]:
    """The doubts about a cell: its own, those about its budget and about the networks."""
    norm = Cell(cell.attack, cell.epsilon).norm
    concerned = {"", f"{cell.attack}@{cell.epsilon}", f"{norm}@{cell.epsilon}"}
    found = {}
    for (metric, name), number in sorted(row.metrics.items()):
        check, _, where = name.partition(":")
        if metric == RELIABILITY_WARNING and number.value and where in concerned:
            found[name] = number.reason or check
    return found


def _broken_by(row: LeaderboardRow, cell: Slice) -> dict[str, float]:
    """Of a worst case, what each of its attacks had a part in."""
    norm = Cell(cell.attack, cell.epsilon).norm
    if cell.attack != f"{WORST_CASE}-{norm}":
        return {}
    shares = {
        part.attack: number.value
        for (metric, name), number in row.metrics.items()
        if metric == BREAKING_SHARE and number.value is not None
        for part in [Cell.parse(name)]
        if (part.norm, part.epsilon) == (norm, cell.epsilon)
    }
    return dict(sorted(shares.items(), key=lambda each: (-each[1], each[0])))


def network_label(group: Mapping[str, Any]) -> str:
    """The network with its non-default parameters."""
    return _label(MODELS, group["network"])


def protocol_label(group: Mapping[str, Any]) -> str:
    """The protocol, whose labels it wants, and a word where it chooses on the test set."""
    label = _label(PROTOCOLS, group["protocol"])
    if _is_taught(group):
        # Labels that came with an imported set are of a teacher that nobody here knows.
        teacher = group.get("teacher")
        label += f" by {_label(MODELS, teacher)}" if teacher else " by labels of the set"
    chosen = group["protocol"].get("params", {}).get("selection") == "paper"
    return f"{label} (chosen on the test set)" if chosen else label


def method_label(group: Mapping[str, Any]) -> str:
    """The method, and the network it matched on or the teacher it asked where that is another."""
    if group["method"] is None:
        return WHOLE_SET
    method = _label(DISTILLATION, group["method"])
    if "teacher" in group and not _is_taught(group):
        return f"{method} by {_label(MODELS, group['teacher'])}"
    matching = group.get("matching_network")
    if matching is None or matching == group["network"]:
        return method
    return f"{method} on {_label(MODELS, matching)}"


def _is_taught(group: Mapping[str, Any]) -> bool:
    name = group["protocol"]["name"]
    return name in PROTOCOLS and issubclass(PROTOCOLS.get(name).params, TaughtParams)


def _label(registry: Registry, ref: Mapping[str, Any]) -> str:
    return plugin_label(registry, PluginRef.model_validate(ref))


def _order(row: Standing) -> tuple[Any, ...]:
    radius = -1.0 if row.epsilon is None else epsilon_value(row.epsilon)
    robust = row.robust.value
    return (
        row.bench,
        not (row.attack or "").startswith(f"{WORST_CASE}-"),
        not (row.attack or "").startswith(f"{ENVELOPE}-"),
        row.attack or "",
        radius,
        robust is None,
        -(robust or 0.0),
        row.method,
        row.images_per_class or 0,
    )


def _record(row: Standing) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(row, name) for name in _FACTS}
    for name in _MEASURES:
        measured = getattr(row, name)
        record[name] = measured.value
        record |= {f"{name}_{part}": getattr(measured, part) for part in _PARTS}
    return record
