from __future__ import annotations

import random

import pytest

from overproof.evaluation.pareto import front


def test_front_by_hand() -> None:
    points = [(0.5, 0.4), (0.2, 0.3), (0.6, 0.39), (0.1, 0.1), (0.3, 0.25)]

    assert front(points) == [3, 1, 0]


def test_equal_points_are_on_it_together() -> None:
    assert sorted(front([(0.1, 0.2), (0.1, 0.2), (0.1, 0.1)])) == [0, 1]


def test_no_points_have_no_front() -> None:
    assert front([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_nothing_on_the_front_is_beaten_and_all_else_is(seed: int) -> None:
    stream = random.Random(seed)
    points = [(stream.randrange(8) / 8, stream.randrange(8) / 8) for _ in range(30)]

    def beaten(p: tuple[float, float]) -> bool:
        return any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)

    assert set(front(points)) == {i for i, point in enumerate(points) if not beaten(point)}
