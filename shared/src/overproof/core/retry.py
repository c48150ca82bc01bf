"""How often and how late a failed job is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts at growing distances: 30 s, 2 min, 8 min, at most an hour."""

    max_attempts: int = 3
    base_s: float = 30.0
    factor: float = 4.0
    cap_s: float = 3600.0

    def delay_s(self, attempt: int) -> float:
        """Seconds from the end of attempt number `attempt` (from 1) to the next."""
        return min(self.cap_s, self.base_s * self.factor ** (attempt - 1))


DEFAULT_RETRY = RetryPolicy()
