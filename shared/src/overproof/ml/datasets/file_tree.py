"""The files of a folder or of a tar archive, listed and read in one way, without unpacking."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from overproof.errors import InvalidData

_UNREADABLE = (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class File:
    """A regular file of a tree.

    Attributes:
        parts: its path below the root, without `.` and `..`.
        size_bytes: its size.
        offset: where its bytes begin in the unpacked archive; 0 in a folder.
    """

    parts: tuple[str, ...]
    size_bytes: int
    offset: int = 0

    def __str__(self) -> str:
        """The path."""
        return "/".join(self.parts)


class FileTree:
    """A folder, or a tar archive that may be compressed.

    Args:
        source: the folder or the archive.
    """

    def __init__(self, source: Path) -> None:
        self._source = source

    def files(self) -> Iterator[File]:
        """All regular files, folders and hidden files left out.

        Raises:
            InvalidData: the source is unreadable, holds links or devices, or a path that leaves it.
        """
        try:
            yield from self._folder() if self._source.is_dir() else self._archive()
        except _UNREADABLE as error:
            raise InvalidData(
                f"{self._source} is neither a folder nor a readable tar archive: {error}"
            ) from None

    def read(self, files: Iterable[File]) -> Iterator[tuple[File, bytes]]:
        """Each of `files`, which came from `files()`, with its bytes; in the order of offsets.

        Raises:
            InvalidData: the source cannot be read, or changed in the meantime.
        """
        ordered = sorted(files, key=lambda file: file.offset)
        try:
            if self._source.is_dir():
                for file in ordered:
                    yield file, self._source.joinpath(*file.parts).read_bytes()
                return
            with tarfile.open(self._source) as archive:
                # Offsets rise, so that a compressed archive is unpacked once, front to back.
                unpacked = archive.fileobj
                assert unpacked is not None
                for file in ordered:
                    unpacked.seek(file.offset)
                    yield file, unpacked.read(file.size_bytes)
        except _UNREADABLE as error:
            raise InvalidData(f"{self._source} cannot be read: {error}") from None

    def _folder(self) -> Iterator[File]:
        for path in self._source.rglob("*"):
            parts = path.relative_to(self._source).parts
            if _is_hidden(parts):
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InvalidData(f"{path} is a link or a device; pack real files")
            if path.is_file():
                yield File(parts, path.stat().st_size)

    def _archive(self) -> Iterator[File]:
        with tarfile.open(self._source) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                what = f"{self._source}: member {member.name!r}"
                if path.is_absolute() or ".." in path.parts:
                    raise InvalidData(f"{what} leaves the archive; make a clean one")
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise InvalidData(f"{what} is a link, a device or sparse; pack real files")
                if member.isreg() and not _is_hidden(path.parts):
                    yield File(path.parts, member.size, member.offset_data)
                # tarfile remembers every member that it has seen; millions are too many.
                archive.members.clear()  # type: ignore[attr-defined]  # not in its stub


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)
