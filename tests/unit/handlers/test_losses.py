from __future__ import annotations

import pytest

from overproof.handlers.losses import LossCurve


def a_curve(total: int, steps: int) -> LossCurve:
    curve = LossCurve(total)
    for step in range(1, steps + 1):
        curve.add(step, {"loss": 1 / step})
    return curve


def test_short_run_has_a_row_for_each_step() -> None:
    assert a_curve(3, 3).text() == "step,loss\n1,1.0\n2,0.5\n3,0.3333333333333333\n"


@pytest.mark.parametrize(
    ("total", "every"), [(1_000, 1), (1_001, 25), (25_000, 25), (25_001, 50), (200_000, 200)]
)
def test_long_run_has_at_most_a_thousand_rows_and_the_last(total: int, every: int) -> None:
    lines = a_curve(total, total).text().splitlines()[1:]

    steps = [int(line.partition(",")[0]) for line in lines]
    assert steps == sorted({*range(1, total + 1, every), total})
    assert len(steps) <= 1_001


def test_steps_that_say_nothing_have_no_row() -> None:
    curve = LossCurve(3)
    curve.add(1, {"loss": 2.0})
    curve.add(2, {})

    assert curve.text() == "step,loss\n1,2.0\n"


def test_terms_are_columns_and_may_be_missing() -> None:
    curve = LossCurve(3)
    curve.add(1, {"loss": 2.0})
    curve.add(2, {"loss": 1.0, "entropy": 0.5})

    assert curve.text() == "step,loss,entropy\n1,2.0,\n2,1.0,0.5\n"


@pytest.mark.parametrize("saved", [1, 2, 4])
@pytest.mark.parametrize("done", [4, 5])
def test_resumed_curve_has_neither_gaps_nor_double_rows(saved: int, done: int) -> None:
    straight = a_curve(6, 6)

    resumed = LossCurve(6)
    resumed.restore(a_curve(6, done).text(), saved)
    for step in range(saved + 1, 7):
        resumed.add(step, {"loss": 1 / step})

    assert resumed.text() == straight.text()
