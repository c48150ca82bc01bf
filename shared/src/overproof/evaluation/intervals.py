"""Means with their uncertainty over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds.

    Attributes:
        mean: arithmetic mean.
        low, high: ends of the two-sided 95 % interval; None when n = 1, since one value says
            nothing of the spread. Not cut to [0, 1]: few seeds may reach beyond it.
        n: how many values.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


def mean_and_ci(values: Sequence[float]) -> Interval:
    """Mean of `values` with the two-sided 95 % interval of Student's t.

    low, high = mean ∓ t(0.975, n − 1) · s / √n with the sample deviation s (denominator n − 1).

    Args:
        values: at least one finite number; independent, one a seed.

    Raises:
        ValueError: `values` is empty or holds NaN or infinity.

    Source: Student 1908, one-sample t interval.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a mean needs finite values, got {list(values)}")
    n = len(values)
    mean = statistics.fmean(values)
    if n == 1:
        return Interval(mean, None, None, 1)
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)
