from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from overproof.runtime.workdir import attempt_folder, remove_stale


def test_folder_is_empty_and_gone_afterwards(tmp_path: Path) -> None:
    with attempt_folder(tmp_path / "work", "job-1") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
        was_there = folder.is_dir()

    assert was_there
    assert not folder.exists()


def test_two_attempts_at_one_job_have_different_folders(tmp_path: Path) -> None:
    with attempt_folder(tmp_path, "job-1") as first, attempt_folder(tmp_path, "job-1") as second:
        assert first != second


def test_folder_in_use_is_not_stale(tmp_path: Path) -> None:
    with attempt_folder(tmp_path, "job-1") as folder:
        removed = remove_stale(tmp_path)

        assert removed == []
        assert folder.is_dir()


def hold_folder(root: Path, answer: Connection) -> None:
    with attempt_folder(root, "job-1") as folder:
        answer.send(folder)
        signal.pause()


def test_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_folder, args=(tmp_path, theirs))
    process.start()
    assert ours.poll(60)
    folder = ours.recv()
    before = remove_stale(tmp_path)

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    assert before == []
    assert remove_stale(tmp_path) == [folder]
    assert not folder.exists()


def test_nothing_to_remove_where_there_is_no_folder(tmp_path: Path) -> None:
    assert remove_stale(tmp_path / "none") == []
