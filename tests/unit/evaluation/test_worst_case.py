"""Worst cases over attacks, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overproof.core.semantics import Semantics
from overproof.evaluation.counts import CellCounts, CleanCounts, NetworkCounts
from overproof.evaluation.robustness import (
    Number,
    network_breaking_share,
    network_drop_rate,
    network_robust_accuracy,
)
from overproof.evaluation.worst_case import worst_cases

TOTAL, CLEAN = 8, 6


def a_cell(survivors: str, invalid: str | None = None) -> CellCounts:
    """A cell of eight samples, the first six of which are right when clean.

    Args:
        survivors: a digit for each sample, `11000000`.
        invalid: why the cell gives no number.
    """
    robust = survivors.count("1")
    return CellCounts(
        total=TOTAL,
        clean_correct=CLEAN,
        robust=dict.fromkeys(Semantics, robust),
        invalid=invalid,
        survivors=int(survivors, 2),
    )


def numbers(cells: dict[str, CellCounts | None]) -> dict[str, Number | None]:
    accuracy = network_robust_accuracy(NetworkCounts(CleanCounts(CLEAN, TOTAL), cells))
    return {name: number for name, number in accuracy.items() if name.startswith(("worst", "env"))}


def test_sample_is_robust_if_no_attack_broke_it() -> None:
    cells: dict[str, CellCounts | None] = {
        "pgd-linf@8/255": a_cell("11110000"),
        "cw-linf[steps=50]@8/255": a_cell("01111000"),
        "square-linf@8/255": a_cell("11101100"),
    }

    # Samples 2 and 3 alone are in all of them: fewer than any attack leaves.
    assert numbers(cells) == {"worst-case-linf@8/255:S2": Number(2 / 8)}
    drops = network_drop_rate(NetworkCounts(None, cells))
    assert drops["worst-case-linf@8/255:S2"] == Number((6 / 8 - 2 / 8) / (6 / 8))


def test_breaking_share_is_what_an_attack_broke_of_what_any_did() -> None:
    cells: dict[str, CellCounts | None] = {
        "pgd-linf@8/255": a_cell("11110000"),
        "cw-linf@8/255": a_cell("00111000"),
        "pgd-linf@4/255": a_cell("11110000"),
    }

    shares = network_breaking_share(NetworkCounts(None, cells))

    # Any: 6 - 2 samples. PGD alone: 6 - 4, CW alone: 6 - 3. At 4/255 there is one attack.
    assert shares == {"pgd-linf@8/255": Number(2 / 4), "cw-linf@8/255": Number(3 / 4)}


def test_breaking_share_of_nothing_is_undefined() -> None:
    whole = a_cell("11111100")

    shares = network_breaking_share(
        NetworkCounts(None, {"a-linf@1/255": whole, "b-linf@1/255": whole})
    )

    assert set(shares.values()) == {Number(None, "no sample was broken")}


def test_norms_and_budgets_are_apart_and_one_attack_is_no_suite() -> None:
    cells: dict[str, CellCounts | None] = {
        "pgd-linf@8/255": a_cell("11000000"),
        "pgd-l2@0.5": a_cell("11100000"),
        "deepfool-l2@0.5": a_cell("00110000"),
        "cw-linf@8/255": a_cell("11100000"),
        "cw-linf@4/255": a_cell("01111000"),
        "someone-elses@4/255": a_cell("00000000"),
    }

    assert numbers(cells) == {
        "worst-case-l2@0.5:S2": Number(1 / 8),
        "worst-case-linf@8/255:S2": Number(2 / 8),
        # An image that is adversarial at 4/255 is one at 8/255.
        "envelope-linf@8/255:S2": Number(1 / 8),
    }


def test_budgets_are_ordered_by_size_not_by_name() -> None:
    cells: dict[str, CellCounts | None] = {
        f"{name}-linf@{epsilon}": a_cell(bits)
        for epsilon, bits in (("16/255", "00011000"), ("8/255", "01111000"), ("0.01", "11100000"))
        for name in ("pgd", "cw")
    }

    envelopes = {name: number for name, number in numbers(cells).items() if name.startswith("env")}
    assert envelopes == {
        "envelope-linf@8/255:S2": Number(2 / 8),
        "envelope-linf@16/255:S2": Number(0.0),
    }


def test_worst_case_waits_for_every_attack() -> None:
    cells: dict[str, CellCounts | None] = {
        "pgd-linf@8/255": a_cell("11000000"),
        "cw-linf@8/255": None,
    }

    assert numbers(cells) == {"worst-case-linf@8/255:S2": None}
    shares = network_breaking_share(NetworkCounts(None, cells))
    assert shares == {"pgd-linf@8/255": None, "cw-linf@8/255": None}


def test_invalid_cells_are_left_out_of_the_worst_case() -> None:
    invalid = a_cell("00000000", invalid="random outputs")

    some = numbers({"pgd-linf@8/255": invalid, "autoattack-linf@8/255": a_cell("11000000")})
    none = numbers({"pgd-linf@8/255": invalid, "cw-linf@8/255": invalid})

    assert some == {"worst-case-linf@8/255:S2": Number(2 / 8)}
    assert none == {"worst-case-linf@8/255:S2": Number(None, "random outputs")}


def test_counts_without_samples_say_what_to_do() -> None:
    old = CellCounts(TOTAL, CLEAN, dict.fromkeys(Semantics, 2))

    [number] = numbers({"pgd-linf@8/255": old, "cw-linf@8/255": old}).values()

    assert number is not None
    assert number.reason is not None
    assert "run the attack again" in number.reason


def test_attack_whose_samples_are_not_known_is_not_left_out() -> None:
    old = CellCounts(TOTAL, CLEAN, dict.fromkeys(Semantics, 1))

    [number] = numbers({"pgd-linf@8/255": old, "cw-linf@8/255": a_cell("11100000")}).values()

    # Without it the worst case would be 3, and the attack alone leaves 1.
    assert number is not None
    assert number.value is None
    assert "run the attack again" in (number.reason or "")


flags = st.integers(0, 2**CLEAN - 1).map(lambda bits: f"{bits:0{CLEAN}b}00")


@given(st.lists(flags, min_size=2, max_size=5), st.lists(flags, min_size=1, max_size=3))
def test_worst_case_is_below_every_attack_and_the_envelope_never_rises(
    large: list[str], small: list[str]
) -> None:
    cells: dict[str, CellCounts | None] = {
        f"a{i}-linf@{epsilon}": a_cell(bits)
        for epsilon, of_budget in (("8/255", large), ("2/255", small))
        for i, bits in enumerate(of_budget)
    }

    found = worst_cases(cells)

    worst, envelope = found["worst-case-linf@8/255"], found["envelope-linf@8/255"]
    assert worst is not None
    assert envelope is not None
    left = worst.robust[Semantics.S2]
    assert all(left <= bits.count("1") for bits in large)
    assert envelope.robust[Semantics.S2] <= min(left, *(bits.count("1") for bits in small))
