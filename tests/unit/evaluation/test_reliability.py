"""Signs of unreliable numbers, each by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from overproof.core.semantics import Semantics
from overproof.evaluation.counts import CellCounts, CleanCounts, NetworkCounts
from overproof.evaluation.reliability import (
    FLAT_GRADIENTS,
    NEAR_CHANCE,
    PROBABILITY_OUTPUTS,
    SQUARE_GAIN,
    SUBSTITUTED_LOSS,
    WEAK_CROSS_ENTROPY,
    Thresholds,
    checks,
    network_warnings,
)
from overproof.evaluation.robustness import Number

PGD = "pgd-linf[steps=20]@8/255"
CW = "cw-linf@8/255"


def a_cell(robust: int = 300, **over: Any) -> CellCounts:
    values: dict[str, Any] = {
        "total": 1000,
        "clean_correct": 800,
        "robust": dict.fromkeys(Semantics, robust),
        "classes": 10,
    }
    return CellCounts(**(values | over))


def warned(
    cells: Mapping[str, CellCounts | None], thresholds: Thresholds | None = None
) -> dict[str, str]:
    """Slice → warning, of a network with these cells."""
    network = NetworkCounts(CleanCounts(800, 1000), cells)
    return {
        check.slice: check.warning
        for check in checks(network, thresholds)
        if check.warning is not None
    }


def test_network_without_a_sign_has_no_warning_but_its_checks() -> None:
    network = NetworkCounts(CleanCounts(800, 1000), {PGD: a_cell(), CW: a_cell(295)})

    assert network_warnings(network) == {
        NEAR_CHANCE: Number(0.0),
        PROBABILITY_OUTPUTS: Number(0.0),
        f"{FLAT_GRADIENTS}:{PGD}": Number(0.0),
        f"{FLAT_GRADIENTS}:{CW}": Number(0.0),
        f"{WEAK_CROSS_ENTROPY}:linf@8/255": Number(0.0),
    }


@pytest.mark.parametrize(("correct", "warns"), [(149, True), (151, False)])
def test_near_chance_is_below_one_and_a_half_times_it(correct: int, warns: bool) -> None:
    assert (NEAR_CHANCE in warned({PGD: a_cell(0, clean_correct=correct)})) is warns


def test_chance_of_an_unknown_number_of_classes_is_not_judged() -> None:
    slices = [check.slice for check in checks(NetworkCounts(None, {PGD: a_cell(classes=0)}))]

    assert NEAR_CHANCE not in slices


@pytest.mark.parametrize(("flat", "warns"), [(10, False), (11, True)])
def test_flat_gradients_on_more_than_a_hundredth(flat: int, warns: bool) -> None:
    found = warned({PGD: a_cell(flat_gradients=flat)})

    assert (f"{FLAT_GRADIENTS}:{PGD}" in found) is warns


@pytest.mark.parametrize(("gained", "warns"), [(2, False), (3, True)])
def test_square_that_breaks_more_than_two_thousandths(gained: int, warns: bool) -> None:
    parts = {"apgd-ce": 400, "apgd-t": 50, "fab-t": 1, "square": gained}

    found = warned({"autoattack-linf@8/255": a_cell(broken_by=parts)})

    assert (f"{SQUARE_GAIN}:autoattack-linf@8/255" in found) is warns


def test_best_cross_entropy_attack_is_held_against_the_best_on_a_margin() -> None:
    cells: dict[str, CellCounts | None] = {
        PGD: a_cell(400),
        "apgd-ce-linf@8/255": a_cell(321),
        CW: a_cell(350),
        "fab-t-linf@8/255": a_cell(310),
        "fgsm-linf@8/255": a_cell(100),  # one step: no measure of a loss
        "cw-linf@4/255": a_cell(0),
        "cw-l2@8/255": a_cell(0),
        "someone-elses@8/255": a_cell(0),
    }

    found = warned(cells)

    assert list(found) == [f"{WEAK_CROSS_ENTROPY}:linf@8/255"]
    assert "32.1%" in found[f"{WEAK_CROSS_ENTROPY}:linf@8/255"]
    assert "31.0%" in found[f"{WEAK_CROSS_ENTROPY}:linf@8/255"]
    assert warned(cells, Thresholds(loss_gap=0.02)) == {}


def test_parts_that_autoattack_replaced_are_told() -> None:
    parts = {"apgd-ce": 400, "apgd-t-margin": 50}
    cell = a_cell(broken_by=parts, notes=("apgd-t-margin in the place of DLR",))

    slice_name = f"{SUBSTITUTED_LOSS}:autoattack-linf@8/255"
    assert warned({"autoattack-linf@8/255": cell})[slice_name] == cell.notes[0]
    assert slice_name not in warned({"autoattack-linf@8/255": a_cell(broken_by=parts)})


def test_outputs_that_sum_to_one_are_told() -> None:
    assert PROBABILITY_OUTPUTS in warned({PGD: a_cell(probabilities=True)})


def test_missing_and_invalid_cells_say_nothing() -> None:
    invalid = a_cell(flat_gradients=1000, invalid="non-finite logits")

    assert warned({PGD: invalid, CW: None}) == {}
    assert network_warnings(NetworkCounts(None, {PGD: invalid, CW: None})) == {}
