from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overproof.artifacts.directory import DirectoryStore
from overproof.core.clock import ManualClock
from overproof.errors import ArtifactCorrupt, InvalidKey, StoreUnavailable

MEDIA_TYPE = "application/octet-stream"
DAY_S = 24 * 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"x" * 100_000)
    return path


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 4 KiB: the system's own limit, which fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def test_full_disk_is_said_plainly_and_leaves_no_part_of_the_file(
    store: DirectoryStore, root: Path, source: Path
) -> None:
    with full_disk(), pytest.raises(StoreUnavailable, match="free space on that disk"):
        store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)

    assert files_below(root) == []


def test_full_disk_keeps_what_was_there_before(
    store: DirectoryStore, root: Path, source: Path
) -> None:
    source.write_bytes(b"first")
    store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)
    source.write_bytes(b"x" * 100_000)

    with full_disk(), pytest.raises(StoreUnavailable):
        store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)

    assert store.read("jobs/a/1/file") == b"first"
    assert files_below(root) == [root / "jobs/a/1/file"]


def test_full_disk_wins_no_put_once(store: DirectoryStore, root: Path) -> None:
    with full_disk(), pytest.raises(StoreUnavailable, match="free space"):
        store.put_once("jobs/a/manifest.json", b"x" * 100_000)

    assert files_below(root) == []
    assert store.put_once("jobs/a/manifest.json", b"later")


def test_full_disk_at_the_reader_leaves_nothing_there(
    store: DirectoryStore, source: Path, tmp_path: Path
) -> None:
    ref = store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)

    with full_disk(), pytest.raises(StoreUnavailable, match=r"fetched/copy.*free space"):
        store.fetch(ref, tmp_path / "fetched" / "copy")

    assert files_below(tmp_path / "fetched") == []


def test_put_once_has_one_winner_among_processes(root: Path) -> None:
    # Each child opens the store, says so, and writes on a word from the parent.
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from overproof.artifacts.directory import DirectoryStore\n"
        "store = DirectoryStore(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(store.put_once('jobs/a/manifest.json', sys.argv[2].encode()), flush=True)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root), f"attempt {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"

    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    stored = [child.communicate(timeout=30)[0].strip() for child in children]

    assert sorted(stored) == ["False", "False", "False", "True"]
    winner = f"attempt {stored.index('True')}".encode()
    assert DirectoryStore(root).read("jobs/a/manifest.json") == winner


def test_put_once_works_without_hard_links(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File systems without hard links cannot be mounted in a test.
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    stored = [store.put_once("jobs/a/manifest.json", text) for text in (b"first", b"second")]

    assert stored == [True, False]
    assert store.read("jobs/a/manifest.json") == b"first"
    assert files_below(root) == [root / "jobs/a/manifest.json"]


def calls_on(store: DirectoryStore, key: str, source: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.put(key, source, media_type=MEDIA_TYPE),
        lambda: store.put_once(key, b"escaped"),
        lambda: store.read(key),
        lambda: store.exists(key),
        lambda: store.delete(key),
    ]


def test_symbolic_link_to_a_folder_leads_nowhere(
    store: DirectoryStore, root: Path, source: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "jobs").symlink_to(outside)

    for call in calls_on(store, "jobs/secret", source):
        with pytest.raises(InvalidKey, match="symbolic link"):
            call()
    with pytest.raises(InvalidKey):
        store.keys("jobs/")

    assert list(store.keys("")) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_symbolic_link_to_a_file_is_neither_read_nor_written_through(
    store: DirectoryStore, root: Path, source: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (root / "link").symlink_to(secret)

    with pytest.raises(InvalidKey):
        store.read("link")
    assert store.put_once("link", b"escaped") is False
    store.put("link", source, media_type=MEDIA_TYPE)

    assert secret.read_bytes() == b"secret"
    assert store.read("link") == source.read_bytes()


def test_key_below_a_file_is_refused(store: DirectoryStore, source: Path) -> None:
    store.put_once("jobs/a", b"file")

    for call in calls_on(store, "jobs/a/b", source):
        with pytest.raises(InvalidKey, match="use another key"):
            call()


def test_key_of_a_folder_is_absent_and_cannot_be_written(
    store: DirectoryStore, source: Path
) -> None:
    store.put_once("jobs/a/b", b"file")

    store.delete("jobs/a")

    assert store.read("jobs/a") is None
    assert store.put_once("jobs/a", b"x") is False
    with pytest.raises(InvalidKey):
        store.put("jobs/a", source, media_type=MEDIA_TYPE)
    assert list(store.keys("")) == ["jobs/a/b"]


def test_what_a_dead_writer_left_is_never_listed_and_goes_after_a_day(root: Path) -> None:
    clock = ManualClock(2_000_000_000.0)
    DirectoryStore(root, clock=clock)
    left = root / ".tmp" / "left-by-a-dead-process"
    left.write_bytes(b"half")
    os.utime(left, (clock.now(), clock.now()))

    clock.advance(DAY_S - 60)
    young = DirectoryStore(root, clock=clock)
    listed = list(young.keys(""))
    kept = left.exists()
    clock.advance(120)
    DirectoryStore(root, clock=clock)

    assert listed == []
    assert kept
    assert not left.exists()


def test_files_that_are_no_artifacts_are_not_listed(store: DirectoryStore, root: Path) -> None:
    store.put_once("jobs/a/file", b"x")
    (root / "jobs" / ".DS_Store").write_bytes(b"x")
    (root / "jobs" / ".hidden").mkdir()
    (root / "jobs" / ".hidden" / "file").write_bytes(b"x")

    assert list(store.keys("")) == ["jobs/a/file"]


def test_flipped_byte_on_the_disk_is_found(
    store: DirectoryStore, root: Path, source: Path, tmp_path: Path
) -> None:
    ref = store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)
    with (root / ref.key).open("r+b") as file:
        file.seek(50_000)
        file.write(b"y")

    with pytest.raises(ArtifactCorrupt, match="SHA-256"):
        store.fetch(ref, tmp_path / "copy")


def test_store_whose_volume_is_gone_is_unavailable_not_empty(
    store: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    store.put_once("jobs/a/manifest.json", b"x")
    root.rename(tmp_path / "elsewhere")

    for call in (lambda: store.read("jobs/a/manifest.json"), lambda: store.keys("")):
        with pytest.raises(StoreUnavailable, match="mount its volume"):
            call()


def test_store_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailable, match="Not a directory"):
        DirectoryStore(tmp_path / "file" / "store")


def test_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = DirectoryStore(tmp_path / "store")

    store.put_once("a", b"x")

    assert (tmp_path / "disk" / "a").read_bytes() == b"x"


def test_missing_source_is_the_callers_error(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put("a", tmp_path / "absent", media_type=MEDIA_TYPE)


def test_no_descriptor_stays_open(store: DirectoryStore, source: Path, tmp_path: Path) -> None:
    def use() -> None:
        ref = store.put("jobs/a/1/file", source, media_type=MEDIA_TYPE)
        store.put_once("jobs/a/manifest.json", b"x")
        store.fetch(ref, tmp_path / "copy")
        list(store.keys(""))
        for key in ("jobs/a", "jobs/none/file", "jobs/a/manifest.json"):
            store.read(key)
            store.exists(key)
        store.delete("jobs/a/manifest.json")
        with pytest.raises(InvalidKey):
            store.read("jobs/a/1/file/below")

    use()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        use()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_check_tells_folder_and_space_and_leaves_nothing(store: DirectoryStore, root: Path) -> None:
    line = store.check()

    assert str(root) in line
    assert "GB free" in line
    assert files_below(root) == []
