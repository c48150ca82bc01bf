from __future__ import annotations

from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.artifacts.directory import DirectoryStore
from overproof.artifacts.shown import shown_files
from overproof.errors import InvalidKey


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def put(store: DirectoryStore, tmp_path: Path, token: int, name: str) -> None:
    file = tmp_path / "file"
    file.write_text(f"{name} of {token}")
    store.put(keys.shown_file("job-1", token, name), file, media_type="text/plain")


def test_job_that_shows_nothing_has_no_files(store: DirectoryStore, tmp_path: Path) -> None:
    assert shown_files(store, "job-1") == {}


def test_latest_attempt_hides_what_earlier_ones_showed_under_that_name(
    store: DirectoryStore, tmp_path: Path
) -> None:
    for token, name in ((2, "losses.csv"), (10, "losses.csv"), (2, "images-000000000005.png")):
        put(store, tmp_path, token, name)

    found = shown_files(store, "job-1")

    texts = {name: (store.read(key) or b"").decode() for name, key in found.items()}
    assert texts == {
        "images-000000000005.png": "images-000000000005.png of 2",
        "losses.csv": "losses.csv of 10",
    }


def test_other_jobs_are_left_out(store: DirectoryStore, tmp_path: Path) -> None:
    put(store, tmp_path, 1, "losses.csv")

    assert shown_files(store, "job-11") == {}


def test_id_that_leaves_the_folder_is_refused(store: DirectoryStore) -> None:
    with pytest.raises(InvalidKey):
        shown_files(store, "../job-1")
