from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from overproof.evaluation.intervals import mean_and_ci

fractions = st.floats(0, 1)


def test_interval_of_one_two_three_is_two_plus_minus_t_over_root_three() -> None:
    interval = mean_and_ci([1.0, 2.0, 3.0])

    # t(0.975, 2) = 4.302653 (tables), s = 1, n = 3
    assert interval.mean == 2
    assert interval.n == 3
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert interval.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    interval = mean_and_ci([0.4])

    assert (interval.mean, interval.low, interval.high, interval.n) == (0.4, None, None, 1)


def test_equal_values_have_an_interval_of_width_zero() -> None:
    interval = mean_and_ci([0.25, 0.25, 0.25])

    assert (interval.low, interval.mean, interval.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf]])
def test_empty_and_non_finite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="a mean needs"):
        mean_and_ci(values)


@given(st.lists(fractions, min_size=2, max_size=8).filter(lambda values: np.std(values) > 1e-6))
def test_interval_agrees_with_scipy_t_distribution(values: list[float]) -> None:
    interval = mean_and_ci(values)

    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert interval.low == pytest.approx(low, rel=1e-9, abs=1e-12)
    assert interval.high == pytest.approx(high, rel=1e-9, abs=1e-12)


@given(st.lists(fractions, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_order_of_seeds_does_not_matter(values: list[float], random: random.Random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)

    assert mean_and_ci(shuffled) == mean_and_ci(values)
