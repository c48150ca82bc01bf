"""An artifact store in a folder, for one machine or a shared volume.

Every folder on the way to a file is opened by descriptor without following symbolic links, so a
link that somebody plants inside the store leads nowhere, whenever it appears.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.transfer import HashingReader, disk_errors, write_verified
from overproof.core.clock import Clock, SystemClock
from overproof.core.refs import ArtifactRef, checked_key, checked_prefix
from overproof.errors import ArtifactMissing, InvalidKey, StoreUnavailable

# No key has a part that begins with a dot, so nothing in here is ever an artifact.
_TEMPORARY = ".tmp"
# A live writer touches its file all the time; one this old belongs to a process that died.
_STALE_S = 24 * 3600.0

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_NOT_A_PLAIN_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})


class DirectoryStore(ArtifactStore):
    """Keeps each artifact in the file of its key below `root`.

    What is stored survives a crash of the machine: file and folder are synced before a method
    returns. On file systems without hard links (some network mounts) a reader may see an object
    of `put_once` while its bytes are still being written.

    Args:
        root: the store's folder, made if missing.
        clock: tells which temporary files are old.

    Raises:
        StoreUnavailable: the folder cannot be made or read.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        self._root = root
        with disk_errors(f"artifact store {root}"):
            root.mkdir(parents=True, exist_ok=True)
            self._remove_stale((clock or SystemClock()).now())

    def put(self, key: str, source: Path, *, media_type: str) -> ArtifactRef:
        """Copy to a temporary file, sync, rename."""
        with (
            source.open("rb") as file,
            self._errors(key),
            self._folder_of(key, create=True) as (folder, name),
        ):
            reader = HashingReader(file)
            with self._temporary(reader.chunks()) as (temporary, temporary_name):
                os.replace(temporary_name, name, src_dir_fd=temporary, dst_dir_fd=folder)
                os.fsync(folder)
            return reader.ref(key, media_type)

    def put_once(self, key: str, data: bytes) -> bool:
        """Link a finished temporary file to the key; the file system lets one writer do that."""
        with self._errors(key), self._folder_of(key, create=True) as (folder, name):
            try:
                with self._temporary([data]) as (temporary, temporary_name):
                    _link(temporary, temporary_name, folder, name, data)
            except FileExistsError:
                return False
            os.fsync(folder)
        return True

    def fetch(self, ref: ArtifactRef, into: Path) -> Path:
        """Copy, verify, rename."""
        with self._opened(ref.key) as file:
            if file is None:
                raise ArtifactMissing(
                    f"artifact {ref.key} is not in the store {self._root}; its job must make it "
                    "again"
                )
            write_verified(HashingReader(file).chunks(), ref, into)
        return into

    def read(self, key: str) -> bytes | None:
        """The bytes of the file, None when absent."""
        with self._opened(key) as file:
            return None if file is None else file.read()

    def size_bytes(self, key: str) -> int | None:
        """The size of the file, None when absent."""
        with self._opened(key) as file:
            return None if file is None else os.fstat(file.fileno()).st_size

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
        return self.size_bytes(key) is not None

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the folder `prefix`, sorted."""
        parts = checked_prefix(prefix).split("/")[:-1]
        found: list[str] = []
        with self._errors(prefix or "(all)"):
            try:
                top = self._open_folder(parts)
            except FileNotFoundError:
                return iter(())
            try:
                for path, folders, files, folder in os.fwalk(".", dir_fd=top):
                    folders[:] = [name for name in folders if not name.startswith(".")]
                    inner = path.removeprefix(".").removeprefix("/")
                    start = f"{prefix}{inner}/" if inner else prefix
                    found += [start + name for name in files if _is_artifact(name, folder)]
            finally:
                os.close(top)
        return iter(sorted(found))

    def delete(self, key: str) -> None:
        """Remove the file; empty folders stay, since another writer may be about to use them."""
        with (
            self._errors(key),
            suppress(FileNotFoundError, IsADirectoryError),
            self._folder_of(key) as (folder, name),
        ):
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def check(self) -> str:
        """Write, read and delete a probe; the folder and its free space."""
        key = f"probe/{secrets.token_hex(8)}"
        self.put_once(key, b"probe")
        if self.read(key) != b"probe":
            raise StoreUnavailable(
                f"artifact store {self._root} does not give back what was written; check its disk"
            )
        self.delete(key)
        with disk_errors(f"artifact store {self._root}"):
            free_bytes = shutil.disk_usage(self._root).free
        return f"folder {self._root}, {free_bytes / 1e9:.1f} GB free"

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        with disk_errors(f"artifact {key} in {self._root}"):
            try:
                yield
            except OSError as error:
                if error.errno in _NOT_A_PLAIN_PATH:
                    raise InvalidKey(
                        f"artifact key {key} leads through a symbolic link or a file, or to a "
                        f"folder, in {self._root}; remove that or use another key"
                    ) from None
                raise

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO | None]:
        """The file of `key`, open for reading, or None when there is none."""
        with self._errors(key), ExitStack() as stack:
            file: BinaryIO | None = None
            with suppress(FileNotFoundError), self._folder_of(key) as (folder, name):
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
                stack.callback(os.close, descriptor)
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    file = stack.enter_context(os.fdopen(descriptor, "rb", closefd=False))
            yield file

    @contextmanager
    def _folder_of(self, key: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Descriptor of the folder of `key`, and the name of its file there."""
        *folders, name = checked_key(key).split("/")
        folder = self._open_folder(folders, create=create)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _open_folder(self, parts: Sequence[str], *, create: bool = False) -> int:
        """Descriptor of the folder; the caller closes it."""
        try:
            # The root itself may be a link: whoever runs the store chose it.
            folder = os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            # Not "absent", which would make finished jobs run again: a volume is not mounted.
            raise StoreUnavailable(
                f"artifact store {self._root} is not there: {error.strerror}; mount its volume"
            ) from error
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                        os.fsync(folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        except BaseException:
            os.close(folder)
            raise
        return folder

    @contextmanager
    def _temporary(self, chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        """A synced file of `chunks`: descriptor of its folder, and its name; gone afterwards."""
        folder = self._open_folder([_TEMPORARY], create=True)
        name = secrets.token_hex(16)
        try:
            _create(folder, name, chunks)
            yield folder, name
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.close(folder)

    def _remove_stale(self, now: float) -> None:
        folder = self._open_folder([_TEMPORARY], create=True)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # Another process may remove the same file at the same time.
                    with suppress(FileNotFoundError):
                        if now - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                            os.unlink(entry.name, dir_fd=folder)
        finally:
            os.close(folder)


def _create(folder: int, name: str, chunks: Iterable[bytes]) -> None:
    """Write a new file and sync it; nothing is left of it when that fails."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise


def _link(temporary: int, temporary_name: str, folder: int, name: str, data: bytes) -> None:
    """Give the temporary file its name, or create that file where there are no hard links."""
    try:
        os.link(temporary_name, name, src_dir_fd=temporary, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _create(folder, name, [data])


def _is_artifact(name: str, folder: int) -> bool:
    """Whether it is a plain file that is still there."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISREG(mode) and not name.startswith(".")
