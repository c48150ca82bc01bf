"""Which of several points no other one beats."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points that are on the Pareto front, from low to high in the first value.

    The first value is better when low, the second when high. A point is on the front unless
    another one is at least as good in both and better in one; equal points are there together.

    Args:
        points: pairs of finite numbers.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i))
    kept: list[int] = []
    for i in order:
        if not kept or points[i][1] > points[kept[-1]][1] or points[i] == points[kept[-1]]:
            kept.append(i)
    return kept
