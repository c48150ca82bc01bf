"""The worst case over attacks: a sample is robust if no attack of the suite broke it.

The numbers of single attacks bound it from above, and none of them reaches it where each attack
breaks samples that the others leave: it is the number to rank by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from overproof.catalog.slices import ENVELOPE, WORST_CASE, Cell
from overproof.core.semantics import Semantics
from overproof.core.threat import Norm
from overproof.evaluation.counts import CellCounts

Cells = Mapping[str, CellCounts | None]

_NOT_STORED = "outcomes by sample were not stored; run the attack again"


def worst_cases(cells: Cells) -> dict[str, CellCounts | None]:
    """What all attacks of a budget leave together, as if they were one.

    `worst-case-linf@8/255` is over the attacks of that budget, `envelope-linf@8/255` over those of
    smaller budgets too, whose adversarial images are allowed at the larger one as well: it never
    rises with the budget. Both are given for budgets with two attacks or more.

    Args:
        cells: label → counts; attacks whose name tells no norm are left out.

    Returns:
        Label → counts with S2 alone; None until all cells below it are measured. Invalid cells are
        left out, and where no other is left, or one without `survivors`, the whole is invalid.
    """
    found: dict[str, CellCounts | None] = {}
    for norm, budgets in _by_budget(cells).items():
        smaller: list[CellCounts | None] = []
        for epsilon, labels in budgets.items():
            here = [cells[label] for label in labels]
            if len(here) > 1:
                found[f"{WORST_CASE}-{norm}@{epsilon}"] = _union(here)
                if smaller:
                    found[f"{ENVELOPE}-{norm}@{epsilon}"] = _union([*smaller, *here])
            smaller += here
    return found


def beside(cells: Cells) -> dict[str, str]:
    """Label of each cell that is not alone at its budget → label of the worst case there."""
    return {
        label: f"{WORST_CASE}-{norm}@{epsilon}"
        for norm, budgets in _by_budget(cells).items()
        for epsilon, labels in budgets.items()
        for label in labels
        if len(labels) > 1
    }


def _by_budget(cells: Iterable[str]) -> dict[Norm, dict[str, list[str]]]:
    """Norm → budget, the smallest first → labels."""
    parsed = [(Cell.parse(label), label) for label in cells]
    found: dict[Norm, dict[str, list[str]]] = {}
    for cell, label in sorted(parsed, key=lambda each: (each[0].radius, each[1])):
        if cell.norm is not None:
            found.setdefault(cell.norm, {}).setdefault(cell.epsilon, []).append(label)
    return found


def _union(cells: list[CellCounts | None]) -> CellCounts | None:
    measured = [cell for cell in cells if cell is not None]
    if len(measured) < len(cells):
        return None
    total, clean_correct = measured[0].total, measured[0].clean_correct
    valid = [cell for cell in measured if cell.invalid is None]
    survivors = [cell.survivors for cell in valid if cell.survivors is not None]
    # A worst case without an attack that is counted beside it could lie above that attack.
    if not survivors or len(survivors) < len(valid):
        reasons = "; ".join(dict.fromkeys(cell.invalid or _NOT_STORED for cell in measured))
        return CellCounts(total, clean_correct, robust={}, invalid=reasons)
    left = reduce(lambda one, other: one & other, survivors)
    return CellCounts(total, clean_correct, robust={Semantics.S2: left.bit_count()}, survivors=left)
