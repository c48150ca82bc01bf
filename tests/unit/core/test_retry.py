from __future__ import annotations

import pytest

from overproof.core.retry import RetryPolicy


@pytest.mark.parametrize(
    ("attempt", "delay_s"), [(1, 30), (2, 120), (3, 480), (4, 1920), (5, 3600), (50, 3600)]
)
def test_delays_grow_fourfold_up_to_an_hour(attempt: int, delay_s: float) -> None:
    assert RetryPolicy().delay_s(attempt) == delay_s


def test_base_of_zero_retries_at_once() -> None:
    assert RetryPolicy(base_s=0).delay_s(3) == 0
