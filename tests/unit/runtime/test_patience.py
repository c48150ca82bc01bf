from __future__ import annotations

from pathlib import Path

import pytest

from overproof.artifacts.directory import DirectoryStore
from overproof.core.clock import ManualClock
from overproof.core.states import StopReason
from overproof.errors import JobCancelled, StoreUnavailable
from overproof.runtime.patience import PatientStore
from overproof.runtime.stopping import StopRequest


class FlakyStore(DirectoryStore):
    """Does not answer the first `failures` reads."""

    failures = 0

    def read(self, key: str) -> bytes | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the store is down")
        return super().read(key)


class InstantStop(StopRequest):
    """Waits by moving a clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.pauses: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.pauses.append(timeout_s)
        self.clock.advance(timeout_s)
        return self.reason is not None


@pytest.fixture
def stop() -> InstantStop:
    return InstantStop(ManualClock())


def patient(inner: DirectoryStore, stop: InstantStop, patience_s: float = 900) -> PatientStore:
    return PatientStore(inner, stop=stop, clock=stop.clock, patience_s=patience_s)


def test_outage_is_waited_out_with_growing_pauses(tmp_path: Path, stop: InstantStop) -> None:
    inner = FlakyStore(tmp_path)
    inner.put_once("a/key", b"value")
    inner.failures = 8

    assert patient(inner, stop).read("a/key") == b"value"
    assert stop.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_patience_ends(tmp_path: Path, stop: InstantStop) -> None:
    inner = FlakyStore(tmp_path)
    inner.failures = 1000

    with pytest.raises(StoreUnavailable):
        patient(inner, stop, patience_s=100).read("a/key")

    assert 100 <= sum(stop.pauses) < 140


def test_request_to_stop_ends_the_wait(tmp_path: Path, stop: InstantStop) -> None:
    inner = FlakyStore(tmp_path)
    inner.failures = 1000
    stop.set(StopReason.CANCEL)

    with pytest.raises(JobCancelled):
        patient(inner, stop).read("a/key")

    assert len(stop.pauses) == 1


def test_everything_else_passes_through(tmp_path: Path, stop: InstantStop) -> None:
    store = patient(DirectoryStore(tmp_path / "store"), stop)
    source = tmp_path / "source"
    source.write_bytes(b"value")

    ref = store.put("a/key", source, media_type="text/plain")

    assert store.put_once("a/key", b"other") is False
    assert store.fetch(ref, tmp_path / "fetched").read_bytes() == b"value"
    assert (store.exists("a/key"), store.size_bytes("a/key")) == (True, 5)
    assert list(store.keys("a/")) == ["a/key"]
    store.delete("a/key")
    assert store.read("a/key") is None
    assert "folder" in store.check()
    assert stop.pauses == []
