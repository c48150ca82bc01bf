"""What is counted of one network: the input of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overproof.core.semantics import Semantics


@dataclass(frozen=True)
class CellCounts:
    """What one attack at one budget left of one network.

    Attributes:
        total: attacked samples.
        clean_correct: those classified rightly before the attack.
        robust: meaning of robust → samples that are robust by it; not read when invalid.
        invalid: why the cell gives no number (e.g. non-finite logits), None for a valid one.
        flat_gradients: samples at which the attack met a gradient of zero.
        broken_by: part of a cascade → samples that it broke and no part before it.
        classes: that the network tells apart, 0 where it is not known.
        probabilities: the network's outputs look like probabilities.
        notes: what the attack did differently for this network, one line each.
        survivors: a bit for each sample, set where it is robust by S2; None where it is not known.
            Cells of one network have their samples in one order.
    """

    total: int
    clean_correct: int
    robust: Mapping[Semantics, int]
    invalid: str | None = None
    flat_gradients: int = 0
    broken_by: Mapping[str, int] = field(default_factory=dict)
    classes: int = 0
    probabilities: bool = False
    notes: tuple[str, ...] = ()
    survivors: int | None = None


@dataclass(frozen=True)
class CleanCounts:
    """What a network does on the unchanged test set.

    Attributes:
        correct: right answers of the weights that are kept.
        total: of the test set.
        last, best: right answers after the last epoch, and the most after any that was looked at;
            None for networks that were not watched in training.
    """

    correct: int
    total: int
    last: int | None = None
    best: int | None = None


@dataclass(frozen=True)
class NetworkCounts:
    """What is known of one network; None stands for what is wanted and not yet measured.

    Attributes:
        cells: label of a cell (`pgd-linf@8/255`) → its counts.
    """

    clean: CleanCounts | None
    cells: Mapping[str, CellCounts | None] = field(default_factory=dict)
