"""Signs that a robust accuracy looks better than the network is.

Each check says of one network, or of one of its cells, whether there is reason to doubt. A number
with a warning stays a number; what means nothing at all is `invalid` instead and gives none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from overproof.catalog.attacks import CROSS_ENTROPY, MARGIN, attack
from overproof.catalog.slices import Cell
from overproof.core.semantics import Semantics
from overproof.core.threat import Norm
from overproof.errors import UnknownPlugin
from overproof.evaluation.counts import CellCounts, NetworkCounts
from overproof.evaluation.robustness import Number, Numbers

NEAR_CHANCE = "near-chance"
PROBABILITY_OUTPUTS = "probability-outputs"
FLAT_GRADIENTS = "flat-gradients"
SQUARE_GAIN = "square-gain"
WEAK_CROSS_ENTROPY = "weak-cross-entropy"
SUBSTITUTED_LOSS = "substituted-loss"

_SQUARE = "square"  # the part of AutoAttack that sees no gradients


@dataclass(frozen=True)
class Thresholds:
    """Above which a sign becomes a warning; accuracies and shares are fractions.

    Attributes:
        chance_multiple: clean accuracy, in multiples of 1 / K, that counts as having learned.
        flat_share: share of samples at which an attack met a gradient of zero.
        square_gain: share of samples that Square breaks after AutoAttack's gradient attacks.
        loss_gap: robust accuracy under the best attack on the cross entropy less that under the
            best one on a margin.

    Source: the flags of fra31/auto-attack, checks.py, for Square; the others are ours.
    """

    chance_multiple: float = 1.5
    flat_share: float = 0.01
    square_gain: float = 0.002
    loss_gap: float = 0.01


@dataclass(frozen=True)
class Check:
    """One sign that was looked for.

    Attributes:
        name: of the sign, as in the constants above.
        where: label of the cell or `norm@epsilon` it concerns, "" for the network as a whole.
        warning: what is doubtful and why, None when all is well.
    """

    name: str
    where: str
    warning: str | None

    @property
    def slice(self) -> str:
        """`flat-gradients:pgd-linf@8/255`, or the name alone."""
        return f"{self.name}:{self.where}" if self.where else self.name


def checks(network: NetworkCounts, thresholds: Thresholds | None = None) -> list[Check]:
    """Every check that the finished, valid cells of a network allow."""
    limits = thresholds or Thresholds()
    cells = {
        label: cell
        for label, cell in network.cells.items()
        if cell is not None and cell.invalid is None and cell.total > 0
    }
    return [
        *_of_network(cells.values(), limits),
        *(_flat_gradients(label, cell, limits) for label, cell in cells.items()),
        *(
            _square_gain(label, cell, limits)
            for label, cell in cells.items()
            if _SQUARE in cell.broken_by
        ),
        *_losses(cells, limits),
        # Only cascades put one part in the place of another, and say so.
        *(
            Check(SUBSTITUTED_LOSS, label, "; ".join(cell.notes) or None)
            for label, cell in cells.items()
            if cell.broken_by
        ),
    ]


def network_warnings(network: NetworkCounts) -> Numbers:
    """For each check 1 if it warns, with the warning as the reason, else 0."""
    return {
        check.slice: Number(0.0 if check.warning is None else 1.0, check.warning)
        for check in checks(network)
    }


def _of_network(cells: Iterable[CellCounts], limits: Thresholds) -> Iterator[Check]:
    first = next(iter(cells), None)
    if first is None:
        return
    if first.classes:
        clean, chance = first.clean_correct / first.total, 1.0 / first.classes
        near = clean < limits.chance_multiple * chance
        yield Check(
            NEAR_CHANCE,
            "",
            f"clean accuracy {clean:.1%} is near chance, {chance:.1%}" if near else None,
        )
    yield Check(
        PROBABILITY_OUTPUTS,
        "",
        "outputs look like probabilities; attacks need logits" if first.probabilities else None,
    )


def _flat_gradients(label: str, cell: CellCounts, limits: Thresholds) -> Check:
    share = cell.flat_gradients / cell.total
    warning = f"gradients of zero on {share:.1%} of the samples: the attack was blind there"
    return Check(FLAT_GRADIENTS, label, warning if share > limits.flat_share else None)


def _square_gain(label: str, cell: CellCounts, limits: Thresholds) -> Check:
    share = cell.broken_by[_SQUARE] / cell.total
    warning = (
        f"Square broke {share:.1%} of the samples after the gradient attacks: masked gradients"
    )
    return Check(SQUARE_GAIN, label, warning if share > limits.square_gain else None)


def _losses(cells: Mapping[str, CellCounts], limits: Thresholds) -> Iterator[Check]:
    best: dict[tuple[Norm, str], dict[str, float]] = {}
    for label, cell in cells.items():
        parsed = Cell.parse(label)
        try:
            info = attack(parsed.name)
        except UnknownPlugin:  # installed elsewhere: what it climbs is not known
            continue
        for tag in info.tags & {CROSS_ENTROPY, MARGIN}:
            by_loss = best.setdefault((info.norm, parsed.epsilon), {})
            robust = cell.robust[Semantics.S2] / cell.total
            by_loss[tag] = min(robust, by_loss.get(tag, robust))
    for (norm, epsilon), by_loss in best.items():
        if len(by_loss) == 2:
            gap = by_loss[CROSS_ENTROPY] - by_loss[MARGIN]
            warning = (
                f"attacks on the cross entropy leave {by_loss[CROSS_ENTROPY]:.1%}, "
                f"those on a margin {by_loss[MARGIN]:.1%}: saturated outputs"
            )
            yield Check(
                WEAK_CROSS_ENTROPY,
                f"{norm}@{epsilon}",
                warning if gap > limits.loss_gap else None,
            )
