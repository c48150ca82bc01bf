"""Fetched artifacts on the local disk, by content, bounded in size."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.transfer import disk_errors
from overproof.core.clock import Clock, SystemClock
from overproof.core.refs import ArtifactRef

_log = logging.getLogger(__name__)

# A download that has not grown for so long belongs to a process that died.
_STALE_S = 3600.0


class ArtifactCache:
    """A folder of files named by their SHA-256; several processes may share it.

    A file appears by one rename when its hash has been verified, so two processes that fetch the
    same artifact do no harm. Callers get a hard link of their own, so eviction takes nothing away
    from a job that runs.

    Args:
        folder: made if missing; links are made within its file system.
        limit_bytes: what is least recently used goes when the files exceed this. The file just
            fetched stays, even if it alone is larger.
        clock: stamps each use.
    """

    def __init__(self, folder: Path, *, limit_bytes: int, clock: Clock | None = None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._clock = clock or SystemClock()
        with disk_errors(f"cache {folder}"):
            folder.mkdir(parents=True, exist_ok=True)

    def link(self, store: ArtifactStore, ref: ArtifactRef, into: Path) -> Path:
        """Make the artifact appear at the path `into`, fetched first if need be; read-only.

        Raises:
            ArtifactMissing, ArtifactCorrupt, StoreUnavailable: as `ArtifactStore.fetch`.
        """
        cached = self._folder / ref.sha256
        with disk_errors(f"cache {self._folder}"):
            into.parent.mkdir(parents=True, exist_ok=True)
            if not self._try_link(cached, ref.size_bytes, into):
                # Linked before it is in the cache: there another process may evict it at once.
                part = store.fetch(ref, self._folder / f".{secrets.token_hex(8)}.part")
                part.chmod(0o444)
                self._stamp(part)
                into.unlink(missing_ok=True)
                into.hardlink_to(part)
                part.replace(cached)
                self._evict(keep=cached)
        return into

    def _try_link(self, cached: Path, size_bytes: int, into: Path) -> bool:
        try:
            if cached.stat().st_size != size_bytes:
                cached.unlink()
                return False
            self._stamp(cached)
            into.unlink(missing_ok=True)
            into.hardlink_to(cached)
        except FileNotFoundError:
            return False
        return True

    def _stamp(self, path: Path) -> None:
        """Note that the file is used now: many file systems do not note reads."""
        now = self._clock.now()
        os.utime(path, (now, now))

    def _evict(self, *, keep: Path) -> None:
        stale = self._clock.now() - _STALE_S
        files = []
        with locked(self._folder / ".lock"):
            for path in self._folder.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if path.name.startswith("."):
                        if path.suffix == ".part" and status.st_mtime < stale:
                            path.unlink()
                        continue
                    files.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in files)
            for _, size, path in sorted(files):
                if total <= self._limit_bytes:
                    break
                if path != keep:
                    path.unlink(missing_ok=True)
                    total -= size
                    _log.info("removed %s from the cache, %d bytes", path.name[:12], size)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file `path`, across processes; it ends with the process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
