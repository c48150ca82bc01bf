"""Clean accuracy, robust accuracy and drop rate: of one network, and as means over seeds.

Plain counts in, plain numbers out: nothing here knows of units, groups or the database.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from overproof.catalog.slices import ALL, BEST, LAST
from overproof.core.semantics import Semantics
from overproof.evaluation.counts import CellCounts, NetworkCounts
from overproof.evaluation.intervals import mean_and_ci
from overproof.evaluation.worst_case import beside, worst_cases


@dataclass(frozen=True)
class Number:
    """A value, or None with the reason why it is undefined."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True)
class SeedMean:
    """A mean over the networks of a group.

    Attributes:
        low, high: 95 % interval over seeds, None where there is none.
        present, expected: networks in the mean, and networks that belong to it.
        reason: why there is no value, or why networks are missing from it.
    """

    value: float | None
    low: float | None
    high: float | None
    present: int
    expected: int
    reason: str | None


# Slice → number, None for one that is wanted and not yet measured.
Numbers = Mapping[str, Number | None]


def accuracy(correct: int, total: int) -> Number:
    """Share of `correct` in `total`, a fraction in [0, 1]; undefined for an empty test set.

    Raises:
        ValueError: the counts contradict each other.
    """
    if not 0 <= correct <= total:
        raise ValueError(f"{correct} right of {total} samples is impossible")
    if total == 0:
        return Number(None, "the test set is empty")
    return Number(correct / total)


def drop_rate(clean: Number, robust: Number) -> Number:
    """(clean − robust) / clean, at most 1.

    Undefined when either accuracy is, and when clean is 0: never 0 or infinity instead. Negative
    when the attack helps, which S1 allows; it is not cut off.

    Source: DD-RobustBench, equation 1.
    """
    for number in (clean, robust):
        if number.value is None:
            return number
    assert clean.value is not None
    assert robust.value is not None
    if clean.value == 0:
        return Number(None, "clean accuracy is 0")
    return Number((clean.value - robust.value) / clean.value)


# ---- metrics of one network: the targets of catalog/metrics.py ---------------------------------


def network_clean_accuracy(network: NetworkCounts) -> Numbers:
    """Accuracy on the unchanged test set: of the kept weights, the last ones, the best ones."""
    clean = network.clean
    if clean is None:
        return dict.fromkeys((ALL, LAST, BEST))
    counts = {ALL: clean.correct, LAST: clean.last, BEST: clean.best}
    return {
        name: accuracy(correct, clean.total)
        for name, correct in counts.items()
        if correct is not None
    }


def network_robust_accuracy(network: NetworkCounts) -> Numbers:
    """Accuracy under each attack, for each meaning of robust, and in the worst cases over them."""
    return _over_cells(network, _robust_accuracy)


def network_drop_rate(network: NetworkCounts) -> Numbers:
    """Relative loss under each attack, for each meaning of robust, and in the worst cases.

    Clean and robust accuracy are those of the cell, so both are over the same samples.
    """
    return _over_cells(network, _drop_rate)


def network_breaking_share(network: NetworkCounts) -> Numbers:
    """For each cell, how much of what the attacks of its budget broke together it broke alone.

    Only for budgets at which there are several attacks.
    """
    together = worst_cases(network.cells)
    return {
        label: _breaking_share(network.cells[label], together[worst])
        for label, worst in beside(network.cells).items()
    }


def _breaking_share(cell: CellCounts | None, together: CellCounts | None) -> Number | None:
    if cell is None or together is None:
        return None
    if cell.invalid is not None or together.invalid is not None:
        return Number(None, cell.invalid or together.invalid)
    broken = together.clean_correct - together.robust[Semantics.S2]
    if broken == 0:
        return Number(None, "no sample was broken")
    return Number((cell.clean_correct - cell.robust[Semantics.S2]) / broken)


def _over_cells(
    network: NetworkCounts, compute: Callable[[CellCounts, Semantics], Number]
) -> Numbers:
    wanted = [
        *((label, cell, each) for label, cell in network.cells.items() for each in Semantics),
        *((label, cell, Semantics.S2) for label, cell in worst_cases(network.cells).items()),
    ]
    numbers: dict[str, Number | None] = {}
    for label, cell, semantics in wanted:
        slice_name = f"{label}:{semantics}"
        if cell is None:
            numbers[slice_name] = None
        elif cell.invalid is not None:
            numbers[slice_name] = Number(None, cell.invalid)
        else:
            numbers[slice_name] = compute(cell, semantics)
    return numbers


def _robust_accuracy(cell: CellCounts, semantics: Semantics) -> Number:
    return accuracy(cell.robust[semantics], cell.total)


def _drop_rate(cell: CellCounts, semantics: Semantics) -> Number:
    return drop_rate(accuracy(cell.clean_correct, cell.total), _robust_accuracy(cell, semantics))


# ---- over seeds ------------------------------------------------------------------------------


def mean_over_seeds(sets: Sequence[Sequence[Number | None]]) -> SeedMean:
    """Mean over the networks of a group, with its interval.

    With one training set, the networks are the sample. With several distilled sets, the networks
    of each are averaged first and the sets are the sample: networks trained on one set share what
    is lucky or unlucky about it, so they are not independent draws of the method.

    Args:
        sets: for each training set, the number of every network trained on it; None for one that
            is not yet measured. Undefined ones are left out of the mean.
    """
    numbers = [number for of_set in sets for number in of_set]
    defined = [_values(of_set) for of_set in sets if _values(of_set)]
    present = sum(len(values) for values in defined)
    reason = _missing(numbers)
    if not defined:
        return SeedMean(None, None, None, 0, len(numbers), reason)
    sample = defined[0] if len(sets) == 1 else [statistics.fmean(values) for values in defined]
    interval = mean_and_ci(sample)
    return SeedMean(interval.mean, interval.low, interval.high, present, len(numbers), reason)


def _values(numbers: Sequence[Number | None]) -> list[float]:
    return [number.value for number in numbers if number is not None and number.value is not None]


def _missing(numbers: Sequence[Number | None]) -> str | None:
    """Why numbers are not in the mean: each reason once, with how many it keeps out."""
    counts = Counter(
        "not yet measured" if number is None else (number.reason or "undefined")
        for number in numbers
        if number is None or number.value is None
    )
    return "; ".join(f"{count} of {len(numbers)} {why}" for why, count in counts.items()) or None
