"""Published numbers beside measured ones: where a row has a counterpart in a paper.

Published tables lie in `published/` as they were printed, in percent, apart from all measurements.
Numbers that look like misprints are shown with a mark, and repaired nowhere.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from overproof.core.semantics import Semantics
from overproof.report.standings import Standing

SOURCE = "DD-RobustBench, arXiv:2403.13322"
HEADERS = (
    *("data set", "method", "images/class", "attack"),
    *("measured %", "published %", "difference", "table"),
)
NUMBERS = frozenset({"images/class", "measured %", "published %", "difference"})
LEGEND = (
    f"Published: {SOURCE}, networks chosen on the test set, one mean without an interval; "
    "? marks numbers that look like misprints."
)

_CLEAN = "clean"
_ATTACKS = (
    *("fgsm-linf", "pgd-linf", "cw-linf", "vmi-fgsm-linf", "jitter-linf"),
    "autoattack-linf",
)
_PROTOCOL = "ddr"
_NETWORK = "convnet"
# Of the paper: the last iterate of its attacks on all samples, the worst case of AutoAttack.
_SEMANTICS = {"autoattack-linf": Semantics.S2}


@dataclass(frozen=True)
class Published:
    """A number of a paper.

    Attributes:
        value: a fraction.
        table: where it stands.
        doubt: why it looks like a misprint, None where it does not.
    """

    value: float
    table: str
    doubt: str | None = None


@dataclass(frozen=True)
class Beside:
    """A measured accuracy with its counterpart; fractions."""

    dataset: str
    method: str
    images_per_class: int | None
    attack: str
    measured: float
    published: Published

    @property
    def difference(self) -> float:
        """Measured less published."""
        return self.measured - self.published.value


# Data set, method, images per class, attack (`clean` for none) and budget.
Key = tuple[str, str, int | None, str, str | None]


@cache
def published() -> Mapping[Key, Published]:
    """Accuracies of DD-RobustBench on CIFAR and Tiny ImageNet: tables I, IV, VII and VIII."""
    text = (files("overproof.report.published") / "dd_robustbench.csv").read_text("utf-8")
    found: dict[Key, Published] = {}
    for row in csv.DictReader(io.StringIO(text)):
        size = int(row["images_per_class"]) if row["images_per_class"] else None
        doubts = dict(part.split(": ", 1) for part in row["doubtful"].split("; ") if ": " in part)
        for column, value in row.items():
            if not value or column not in (_CLEAN, *_ATTACKS):
                continue
            epsilon = None if column == _CLEAN else row["epsilon"]
            key = (row["dataset"], row["method"], size, column, epsilon)
            found[key] = Published(float(value) / 100, row["table"], doubts.get(column))
    return found


def beside(rows: Iterable[Standing]) -> list[Beside]:
    """Measured rows that have a counterpart: whole data sets, defaults, the protocol of the paper.

    Args:
        rows: of the leaderboard under all meanings of robust that are to be compared: the paper's
            attacks are compared by S1, AutoAttack by S2.
    """
    known = published()
    found: dict[Key, Beside] = {}
    for row in rows:
        dataset = row.dataset.partition("@")[0]
        if row.network != _NETWORK or "(" in row.dataset or not _is_protocol(row.protocol):
            continue
        wanted: list[tuple[str, str | None, float | None]] = [(_CLEAN, None, row.clean.value)]
        if row.attack is not None and row.semantics == _SEMANTICS.get(row.attack, Semantics.S1):
            wanted.append((row.attack, row.epsilon, row.robust.value))
        for attack, epsilon, value in wanted:
            key = (dataset, row.method, row.images_per_class, attack, epsilon)
            if value is not None and key in known:
                label = attack if epsilon is None else f"{attack}@{epsilon}"
                found[key] = Beside(
                    dataset, row.method, row.images_per_class, label, value, known[key]
                )
    return list(found.values())


def cells(rows: Iterable[Beside]) -> list[list[str]]:
    """Rows under `HEADERS`, in percent."""
    return [
        [
            row.dataset,
            row.method,
            "all" if row.images_per_class is None else str(row.images_per_class),
            row.attack,
            f"{100 * row.measured:.1f}",
            f"{100 * row.published.value:.2f}" + (" ?" if row.published.doubt else ""),
            f"{100 * row.difference:+.1f}",
            row.published.table,
        ]
        for row in rows
    ]


def _is_protocol(label: str) -> bool:
    # Its strategy follows the method, and the choice of weights is told behind the name.
    name, _, params = label.partition(" ")[0].partition("[")
    return name == _PROTOCOL and all(
        part.startswith("strategy=") for part in params.rstrip("]").split(",") if part
    )
