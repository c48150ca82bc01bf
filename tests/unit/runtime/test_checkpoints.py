from __future__ import annotations

from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.artifacts.directory import DirectoryStore
from overproof.runtime.checkpoints import Checkpoints

JOB = "job-" + "1" * 32


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def checkpoints(store: DirectoryStore) -> Checkpoints:
    return Checkpoints(store, JOB)


def save(checkpoints: Checkpoints, tmp_path: Path, token: int, step: int) -> None:
    file = tmp_path / "state"
    file.write_text(f"token {token} step {step}")
    checkpoints.save(token, step, file, folder=tmp_path)


def load(checkpoints: Checkpoints, tmp_path: Path) -> tuple[int, str] | None:
    found = checkpoints.load(tmp_path / "loaded")
    return None if found is None else (found.step, found.path.read_text())


def test_there_is_none_at_first(checkpoints: Checkpoints, tmp_path: Path) -> None:
    assert load(checkpoints, tmp_path) is None


def test_latest_step_is_loaded(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (9, 10, 100):
        save(checkpoints, tmp_path, token=1, step=step)

    assert load(checkpoints, tmp_path) == (100, "token 1 step 100")


def test_only_the_latest_two_are_kept(
    checkpoints: Checkpoints, store: DirectoryStore, tmp_path: Path
) -> None:
    for step in range(1, 6):
        save(checkpoints, tmp_path, token=1, step=step)

    kept = [keys.checkpoint(JOB, 1, step) for step in (4, 5)]
    assert list(store.keys(keys.checkpoint_folder(JOB))) == sorted(
        [*kept, *(f"{key}.json" for key in kept)]
    )


def test_corrupt_one_is_skipped(
    checkpoints: Checkpoints, store: DirectoryStore, tmp_path: Path
) -> None:
    for step in (1, 2):
        save(checkpoints, tmp_path, token=1, step=step)
    (tmp_path / "store" / keys.checkpoint(JOB, 1, 2)).write_bytes(b"damaged")

    assert load(checkpoints, tmp_path) == (1, "token 1 step 1")


@pytest.mark.parametrize("index", [b"no JSON", b"{}"])
def test_unreadable_index_is_skipped(
    checkpoints: Checkpoints, store: DirectoryStore, tmp_path: Path, index: bytes
) -> None:
    for step in (1, 2):
        save(checkpoints, tmp_path, token=1, step=step)
    (tmp_path / "store" / f"{keys.checkpoint(JOB, 1, 2)}.json").write_bytes(index)

    assert load(checkpoints, tmp_path) == (1, "token 1 step 1")


def test_file_without_index_is_no_checkpoint(
    checkpoints: Checkpoints, store: DirectoryStore, tmp_path: Path
) -> None:
    save(checkpoints, tmp_path, token=1, step=1)
    half = tmp_path / "half"
    half.write_text("written just before the power went")
    store.put(keys.checkpoint(JOB, 1, 2), half, media_type="text/plain")

    assert load(checkpoints, tmp_path) == (1, "token 1 step 1")


def test_attempt_that_lost_its_claim_removes_nothing_newer(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for step in (5, 6):
        save(checkpoints, tmp_path, token=2, step=step)

    for step in (50, 51, 52):
        save(checkpoints, tmp_path, token=1, step=step)

    assert load(checkpoints, tmp_path) == (6, "token 2 step 6")
