"""What every artifact store does, each on its real back-end."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.directory import DirectoryStore
from overproof.core.refs import ArtifactRef
from overproof.errors import ArtifactCorrupt, ArtifactMissing, InvalidKey

MEDIA_TYPE = "application/octet-stream"


@pytest.fixture(
    params=[
        "directory",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("s3-second", marks=pytest.mark.s3),
    ]
)
def store(
    request: pytest.FixtureRequest, server_url: Callable[[str], str], tmp_path: Path
) -> ArtifactStore:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    from overproof.artifacts.s3 import S3Store

    return S3Store.from_url(
        server_url(request.param.upper().replace("-", "_")),
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture
def job() -> str:
    """The folder of keys of this test alone, since buckets are shared."""
    return f"job-{uuid.uuid4().hex}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(100_000))
    return path


def test_stored_file_comes_back_with_its_hash(
    store: ArtifactStore, job: str, source: Path, tmp_path: Path
) -> None:
    key = keys.attempt_file(job, 1, "images.safetensors")

    ref = store.put(key, source, media_type=MEDIA_TYPE)
    path = store.fetch(ref, tmp_path / "new" / "folder" / "copy")

    assert ref == ArtifactRef(
        key=key,
        sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        size_bytes=100_000,
        media_type=MEDIA_TYPE,
    )
    assert path == tmp_path / "new" / "folder" / "copy"
    assert path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("size_bytes", [0, 1, 20 << 20], ids=["empty", "one byte", "many parts"])
def test_files_of_all_sizes_are_stored(
    store: ArtifactStore, job: str, tmp_path: Path, size_bytes: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size_bytes))

    ref = store.put(f"jobs/{job}/1/file", source, media_type=MEDIA_TYPE)
    path = store.fetch(ref, tmp_path / "copy")

    assert ref.size_bytes == size_bytes
    assert path.read_bytes() == source.read_bytes()


def test_put_replaces(store: ArtifactStore, job: str, source: Path, tmp_path: Path) -> None:
    key = f"jobs/{job}/1/file"
    store.put(key, source, media_type=MEDIA_TYPE)
    source.write_bytes(b"second")

    ref = store.put(key, source, media_type=MEDIA_TYPE)

    assert store.fetch(ref, tmp_path / "copy").read_bytes() == b"second"
    assert store.read(key) == b"second"


def test_put_once_keeps_the_first(store: ArtifactStore, job: str) -> None:
    assert store.put_once(keys.manifest(job), b"first") is True
    assert store.put_once(keys.manifest(job), b"second") is False
    assert store.read(keys.manifest(job)) == b"first"


def test_put_once_works_again_after_delete(store: ArtifactStore, job: str) -> None:
    store.put_once(keys.manifest(job), b"quarantined")
    store.delete(keys.manifest(job))

    stored = store.put_once(keys.manifest(job), b"made again")

    assert stored
    assert store.read(keys.manifest(job)) == b"made again"


def test_put_once_has_one_winner_among_threads(store: ArtifactStore, job: str) -> None:
    texts = [f"attempt {number}".encode() for number in range(8)]

    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda text: store.put_once(keys.manifest(job), text), texts))

    assert stored.count(True) == 1
    assert store.read(keys.manifest(job)) == texts[stored.index(True)]


def test_fetch_of_a_missing_key_says_so(
    store: ArtifactStore, job: str, source: Path, tmp_path: Path
) -> None:
    ref = store.put(f"jobs/{job}/1/file", source, media_type=MEDIA_TYPE)
    store.delete(ref.key)

    with pytest.raises(ArtifactMissing, match=ref.key):
        store.fetch(ref, tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "data",
    [b"other byte", b"short", b"much longer than it was", b""],
    ids=["changed", "shorter", "longer", "empty"],
)
def test_fetch_of_corrupt_bytes_leaves_nothing_behind(
    store: ArtifactStore, job: str, tmp_path: Path, data: bytes
) -> None:
    folder = tmp_path / "fetched"
    folder.mkdir()
    source = tmp_path / "source"
    source.write_bytes(b"right byte")
    ref = store.put(f"jobs/{job}/1/file", source, media_type=MEDIA_TYPE)
    (folder / "copy").write_bytes(b"left by an earlier fetch")
    source.write_bytes(data)
    store.put(ref.key, source, media_type=MEDIA_TYPE)

    with pytest.raises(ArtifactCorrupt, match=ref.key):
        store.fetch(ref, folder / "copy")

    assert list(folder.iterdir()) == []


def test_read_and_exists_tell_what_is_there(store: ArtifactStore, job: str) -> None:
    key = keys.manifest(job)
    before = store.exists(key), store.read(key)

    store.put_once(key, b"manifest")

    assert before == (False, None)
    assert (store.exists(key), store.read(key)) == (True, b"manifest")
    assert not store.exists(f"jobs/{job}")


def test_delete_of_an_absent_key_is_fine(store: ArtifactStore, job: str) -> None:
    store.put_once(keys.manifest(job), b"manifest")

    for _ in range(2):
        store.delete(keys.manifest(job))
    store.delete(f"jobs/{job}/no/such/folder")

    assert not store.exists(keys.manifest(job))


def test_keys_lists_a_folder_in_order(store: ArtifactStore, job: str) -> None:
    # "." and "-" come before "/" in ASCII: folders and files must not be sorted apart.
    names = ["a/b/c", "a.b", "a-b", "a/b-c", "b", "A", "_x", "a0"]
    for name in names:
        store.put_once(f"jobs/{job}/{name}", b"x")
    store.put_once(f"jobs/{job}0/other", b"x")

    listed = list(store.keys(f"jobs/{job}/"))

    assert listed == sorted(f"jobs/{job}/{name}" for name in names)
    assert list(store.keys(f"jobs/{job}/a/b/")) == [f"jobs/{job}/a/b/c"]
    assert list(store.keys(f"jobs/{job}/nothing/")) == []
    assert f"jobs/{job}0/other" in list(store.keys(""))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "..",
        "jobs/../../etc/passwd",
        "jobs/./x",
        "jobs//x",
        "jobs/x/",
        "jobs\\x",
        "jobs/ü",
        "jobs/x\n",
        "jobs/x\0",
        ".tmp/x",
        "jobs/.hidden",
        "-x",
        "C:/x",
        "jobs/a b",
        "x" * 256,
        "x/" * 256 + "x",
    ],
)
def test_key_that_is_no_plain_path_is_refused(store: ArtifactStore, source: Path, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, source, media_type=MEDIA_TYPE),
        lambda: store.put_once(key, b"x"),
        lambda: store.read(key),
        lambda: store.exists(key),
        lambda: store.delete(key),
        lambda: store.keys(f"{key}/"),
    ]

    for call in calls:
        with pytest.raises(InvalidKey):
            call()


def test_prefix_without_slash_is_refused(store: ArtifactStore) -> None:
    with pytest.raises(InvalidKey, match="slash"):
        store.keys("jobs")


def test_many_threads_share_one_store(store: ArtifactStore, job: str, tmp_path: Path) -> None:
    def round_trip(number: int) -> bool:
        source = tmp_path / f"source-{number}"
        source.write_bytes(bytes([number]) * 10_000)
        ref = store.put(f"jobs/{job}/1/{number}", source, media_type=MEDIA_TYPE)
        return store.fetch(ref, tmp_path / f"copy-{number}").read_bytes() == source.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        right = list(pool.map(round_trip, range(16)))

    assert all(right)
    assert len(list(store.keys(f"jobs/{job}/1/"))) == 16


def test_check_names_the_store_in_one_line(store: ArtifactStore) -> None:
    line = store.check()

    assert line
    assert "\n" not in line
