"""Time as a value to pass in: nothing in the pipeline reads the clock by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, for waiting and for stamps."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to; ships with the library so that users can test too."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """The same value as `now`."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move forward by `seconds` at once."""
        self._now += seconds

    advance = sleep
