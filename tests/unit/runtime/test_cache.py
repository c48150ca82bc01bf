from __future__ import annotations

import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest

from overproof.artifacts.directory import DirectoryStore
from overproof.core.clock import ManualClock
from overproof.core.refs import ArtifactRef
from overproof.errors import ArtifactCorrupt, ArtifactMissing
from overproof.runtime.cache import ArtifactCache


class CountingStore(DirectoryStore):
    """Counts what is fetched from it."""

    fetched = 0

    def fetch(self, ref: ArtifactRef, into: Path) -> Path:
        self.fetched += 1
        return super().fetch(ref, into)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def put(store: DirectoryStore, tmp_path: Path, content: bytes) -> ArtifactRef:
    source = tmp_path / "source"
    source.write_bytes(content)
    name = hashlib.sha256(content).hexdigest()[:8]
    return store.put(f"files/{name}", source, media_type="text/plain")


def cached_names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").iterdir() if path.name[0] != "."}


def test_second_use_fetches_nothing(store: CountingStore, tmp_path: Path) -> None:
    ref = put(store, tmp_path, b"numbers")
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=1000)

    links = [cache.link(store, ref, tmp_path / "job" / name) for name in "ab"]

    assert [link.read_bytes() for link in links] == [b"numbers"] * 2
    assert store.fetched == 1


def test_least_recently_used_goes_first(
    store: CountingStore, tmp_path: Path, clock: ManualClock
) -> None:
    refs = [put(store, tmp_path, bytes([number]) * 40) for number in range(3)]
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=100, clock=clock)
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        clock.advance(1)
        cache.link(store, ref, tmp_path / "link")

    assert cached_names(tmp_path) == {refs[0].sha256, refs[2].sha256}


def test_link_outlives_the_eviction(store: CountingStore, tmp_path: Path) -> None:
    first, second = put(store, tmp_path, b"a" * 40), put(store, tmp_path, b"b" * 40)
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=50)
    link = cache.link(store, first, tmp_path / "first")

    cache.link(store, second, tmp_path / "second")

    assert cached_names(tmp_path) == {second.sha256}
    assert link.read_bytes() == b"a" * 40


def test_file_larger_than_the_cache_is_served_all_the_same(
    store: CountingStore, tmp_path: Path
) -> None:
    ref = put(store, tmp_path, b"x" * 500)

    link = ArtifactCache(tmp_path / "cache", limit_bytes=0).link(store, ref, tmp_path / "link")

    assert link.read_bytes() == b"x" * 500


def test_truncated_file_is_fetched_again(store: CountingStore, tmp_path: Path) -> None:
    ref = put(store, tmp_path, b"numbers")
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=1000)
    cache.link(store, ref, tmp_path / "a")
    cached = tmp_path / "cache" / ref.sha256
    cached.unlink()
    cached.write_bytes(b"num")

    assert cache.link(store, ref, tmp_path / "b").read_bytes() == b"numbers"


def test_handlers_cannot_write_into_the_cache_by_accident(
    store: CountingStore, tmp_path: Path
) -> None:
    ref = put(store, tmp_path, b"numbers")

    link = ArtifactCache(tmp_path / "cache", limit_bytes=1000).link(store, ref, tmp_path / "a")

    assert link.stat().st_mode & 0o222 == 0


def test_missing_and_corrupt_artifacts_leave_nothing_behind(
    store: CountingStore, tmp_path: Path
) -> None:
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=1000)
    ref = put(store, tmp_path, b"numbers")
    wrong = ref.model_copy(update={"sha256": "0" * 64})

    with pytest.raises(ArtifactCorrupt):
        cache.link(store, wrong, tmp_path / "a")
    store.delete(ref.key)
    with pytest.raises(ArtifactMissing):
        cache.link(store, ref, tmp_path / "a")

    assert cached_names(tmp_path) == set()
    assert not (tmp_path / "a").exists()


def test_download_of_a_process_that_died_is_removed(
    store: CountingStore, tmp_path: Path, clock: ManualClock
) -> None:
    cache = ArtifactCache(tmp_path / "cache", limit_bytes=1000, clock=clock)
    old, young = tmp_path / "cache" / ".old.part", tmp_path / "cache" / ".young.part"
    for path, age_s in ((old, 7200), (young, 60)):
        path.write_bytes(b"half")
        os.utime(path, (clock.now() - age_s, clock.now() - age_s))

    cache.link(store, put(store, tmp_path, b"numbers"), tmp_path / "a")

    assert (old.exists(), young.exists()) == (False, True)


def use_cache(folder: Path, refs: list[ArtifactRef], number: int) -> None:
    cache = ArtifactCache(folder / "cache", limit_bytes=100)
    store = DirectoryStore(folder / "store")
    for turn in range(20):
        ref = refs[(turn + number) % len(refs)]
        link = cache.link(store, ref, folder / f"job-{number}" / "link")
        assert hashlib.sha256(link.read_bytes()).hexdigest() == ref.sha256


def test_processes_that_share_a_small_cache_do_not_disturb_each_other(
    store: CountingStore, tmp_path: Path
) -> None:
    refs = [put(store, tmp_path, bytes([number]) * 40) for number in range(5)]
    context = multiprocessing.get_context("forkserver")
    processes = [
        context.Process(target=use_cache, args=(tmp_path, refs, number)) for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0, 0]
