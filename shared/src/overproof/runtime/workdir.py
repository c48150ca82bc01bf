"""Folders of running attempts; those of dead processes are found by their missing lock."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overproof.artifacts.transfer import disk_errors
from overproof.runtime.cache import locked

_LOCK = ".lock"


@contextmanager
def attempt_folder(root: Path, name: str) -> Iterator[Path]:
    """An empty folder below `root` that is removed afterwards.

    The process holds a lock on it, not a note of its pid: processes of several containers may
    share `root`, and their pids mean nothing to each other.
    """
    with disk_errors(f"work folder {root}"):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / _LOCK):
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_stale(root: Path) -> list[Path]:
    """Remove the folders below `root` whose processes died, and return them."""
    if not root.is_dir():
        return []
    removed = []
    with disk_errors(f"work folder {root}"), locked(root / _LOCK):
        for folder in root.iterdir():
            if not folder.is_dir():
                continue
            with suppress(FileNotFoundError):
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
                except BlockingIOError:
                    continue
                finally:
                    os.close(descriptor)
    return removed
