"""An artifact store that waits for a store that is down: a long job must not die of an outage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from overproof.artifacts.base import ArtifactStore
from overproof.core.clock import Clock
from overproof.core.refs import ArtifactRef
from overproof.errors import StoreUnavailable
from overproof.runtime.stopping import StopRequest

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


class PatientStore(ArtifactStore):
    """Repeats each call at growing distances while the inner store is unavailable.

    All calls may be repeated: `put` writes the same bytes, and a `put_once` whose answer was lost
    is decided by reading what is there.

    Args:
        inner: the store.
        stop: ends the wait; then the call raises `JobCancelled` or `ShuttingDown`.
        clock: measures how long a call has waited.
        patience_s: after so long the call raises `StoreUnavailable` after all.
    """

    def __init__(
        self, inner: ArtifactStore, *, stop: StopRequest, clock: Clock, patience_s: float
    ) -> None:
        self._inner = inner
        self._stop = stop
        self._clock = clock
        self._patience_s = patience_s

    def put(self, key: str, source: Path, *, media_type: str) -> ArtifactRef:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.put(key, source, media_type=media_type))

    def put_once(self, key: str, data: bytes) -> bool:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.put_once(key, data))

    def fetch(self, ref: ArtifactRef, into: Path) -> Path:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.fetch(ref, into))

    def read(self, key: str) -> bytes | None:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.read(key))

    def size_bytes(self, key: str) -> int | None:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.size_bytes(key))

    def exists(self, key: str) -> bool:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.exists(key))

    def keys(self, prefix: str) -> Iterator[str]:
        """As the inner store, with patience."""
        return self._patiently(lambda: self._inner.keys(prefix))

    def delete(self, key: str) -> None:
        """As the inner store, with patience."""
        self._patiently(lambda: self._inner.delete(key))

    def check(self) -> str:
        """As the inner store, without patience: it asks how things are now."""
        return self._inner.check()

    def _patiently(self, call: Callable[[], T]) -> T:
        deadline = self._clock.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                if self._clock.monotonic() >= deadline:
                    raise
                _log.warning("artifact store unavailable, trying again in %g s: %s", pause_s, error)
                if self._stop.wait(pause_s):
                    self._stop.raise_if_set()
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
