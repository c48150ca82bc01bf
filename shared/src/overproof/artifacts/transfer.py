"""Copying bytes into and out of a store: hashed in the pass that copies them."""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from overproof.core.refs import ArtifactRef
from overproof.errors import ArtifactCorrupt, StoreUnavailable

CHUNK_BYTES = 1 << 20

_MEDIA_TYPES = {".json": "application/json", ".png": "image/png", ".csv": "text/csv"}

# EFBIG is what a limit on the size of files gives where a quota gives EDQUOT.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class HashingReader:
    """Counts and hashes the bytes of a binary file as they are read.

    Attributes:
        size_bytes: how many bytes were read so far.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, all that is left by default; empty at the end."""
        data = self._source.read(size)
        self._digest.update(data)
        self.size_bytes += len(data)
        return data

    def chunks(self) -> Iterator[bytes]:
        """The rest of the file in pieces."""
        while chunk := self.read(CHUNK_BYTES):
            yield chunk

    def ref(self, key: str, media_type: str) -> ArtifactRef:
        """The reference to a stored file of the bytes read so far."""
        return ArtifactRef(
            key=key,
            sha256=self._digest.hexdigest(),
            size_bytes=self.size_bytes,
            media_type=media_type,
        )


def write_verified(chunks: Iterable[bytes], ref: ArtifactRef, into: Path) -> None:
    """Write `chunks` to the path `into` if they are the bytes that `ref` names.

    The bytes go to a temporary file beside `into`, which is renamed when they are right: whoever
    sees `into` sees all of it. Anything that was at `into` before is gone when they are wrong.

    Raises:
        ArtifactCorrupt: size or SHA-256 differ; nothing is left at `into`.
        StoreUnavailable: the disk of `into` is full or cannot be written.
    """
    part = into.with_name(f".{secrets.token_hex(8)}.part")
    digest = hashlib.sha256()
    size_bytes = 0
    with disk_errors(f"file {into}"):
        into.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as target:
                for chunk in chunks:
                    size_bytes += len(chunk)
                    if size_bytes > ref.size_bytes:
                        break
                    digest.update(chunk)
                    target.write(chunk)
            if size_bytes != ref.size_bytes or digest.hexdigest() != ref.sha256:
                into.unlink(missing_ok=True)
                raise ArtifactCorrupt(_difference(ref, size_bytes, digest.hexdigest()))
            part.replace(into)
        finally:
            part.unlink(missing_ok=True)


def media_type_of(path: Path) -> str:
    """The media type that the ending of a file's name says."""
    return _MEDIA_TYPES.get(path.suffix, "application/octet-stream")


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn the operating system's errors into errors that say which file and what to do.

    Raises:
        StoreUnavailable: the disk is full, read-only, or answers with an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreUnavailable(
                f"{what} does not fit: {error.strerror}; free space on that disk or raise its quota"
            ) from error
        raise StoreUnavailable(
            f"{what} cannot be used: {error.strerror}; check the folder's owner, mode and disk"
        ) from error


def _difference(ref: ArtifactRef, size_bytes: int, sha256: str) -> str:
    if size_bytes > ref.size_bytes:
        found = f"more than {ref.size_bytes} bytes"
    elif size_bytes < ref.size_bytes:
        found = f"{size_bytes} bytes instead of {ref.size_bytes}"
    else:
        found = f"SHA-256 {sha256[:12]}… instead of {ref.sha256[:12]}…"
    return f"artifact {ref.key} is corrupt: it has {found}; its job must make it again"
