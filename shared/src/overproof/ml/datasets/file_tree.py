"""The files of a folder or of an archive, listed and read in one way, without unpacking to disk."""

from __future__ import annotations

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from overproof.errors import InvalidData

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
MAX_FILES = 5_000_000
# Images hardly shrink when they are packed; what unpacks to more than this is made to fill a disk.
MAX_RATIO = 100
_SMALL = 2**26


@dataclass(frozen=True)
class File:
    """A regular file of a tree.

    Attributes:
        parts: its path below the root, without `.` and `..`.
        size_bytes: its size.
        offset: where its bytes begin in the unpacked tar archive; 0 elsewhere.
    """

    parts: tuple[str, ...]
    size_bytes: int
    offset: int = 0

    def __str__(self) -> str:
        """The path."""
        return "/".join(self.parts)


class FileTree:
    """A folder, a tar archive that may be compressed, or a zip archive.

    Args:
        source: the folder or the archive.
    """

    def __init__(self, source: Path) -> None:
        self._source = source

    def files(self) -> Iterator[File]:
        """All regular files, folders and hidden files left out.

        Raises:
            InvalidData: the source is unreadable, holds links or devices, a path that leaves it,
                too many files, or unpacks to far more than it is.
        """
        try:
            for count, file in enumerate(self._listed(), start=1):
                if count > MAX_FILES:
                    raise InvalidData(f"{self._source} has more than {MAX_FILES} files")
                if not _is_hidden(file.parts):
                    yield file
        except _UNREADABLE as error:
            raise InvalidData(
                f"{self._source} is neither a folder nor a readable archive: {_line(error)}"
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
            if zipfile.is_zipfile(self._source):
                with zipfile.ZipFile(self._source) as packed:
                    for file in ordered:
                        with packed.open(str(file)) as member:
                            yield file, member.read(file.size_bytes)
                return
            with tarfile.open(self._source) as archive:
                # Offsets rise, so that a compressed archive is unpacked once, front to back.
                unpacked = archive.fileobj
                assert unpacked is not None
                for file in ordered:
                    unpacked.seek(file.offset)
                    yield file, unpacked.read(file.size_bytes)
        except _UNREADABLE as error:
            raise InvalidData(f"{self._source} cannot be read: {_line(error)}") from None

    def _listed(self) -> Iterator[File]:
        if self._source.is_dir():
            return self._folder()
        return self._zip() if zipfile.is_zipfile(self._source) else self._tar()

    def _folder(self) -> Iterator[File]:
        for path in self._source.rglob("*"):
            parts = path.relative_to(self._source).parts
            if _is_hidden(parts):
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InvalidData(f"{path} is a link or a device; pack real files")
            if path.is_file():
                yield File(parts, path.stat().st_size)

    def _zip(self) -> Iterator[File]:
        unpacked, seen = 0, set[str]()
        with zipfile.ZipFile(self._source) as archive:
            for member in archive.infolist():
                if member.filename in seen and not member.is_dir():
                    raise InvalidData(f"{self._what(member.filename)} is there twice")
                seen.add(member.filename)
                self._check_name(member.filename)
                if str(PurePosixPath(member.filename)) != member.filename.rstrip("/"):
                    raise InvalidData(f"{self._what(member.filename)} is no clean path")
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
                    raise InvalidData(
                        f"{self._what(member.filename)} is a link, a device or encrypted; pack "
                        "real files"
                    )
                unpacked = self._check_size(unpacked + member.file_size)
                if not member.is_dir():
                    yield File(PurePosixPath(member.filename).parts, member.file_size)

    def _tar(self) -> Iterator[File]:
        unpacked = 0
        with tarfile.open(self._source) as archive:
            for member in archive:
                self._check_name(member.name)
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise InvalidData(
                        f"{self._what(member.name)} is a link, a device or sparse; pack real files"
                    )
                if member.size < 0:  # the format has room for a sign
                    raise InvalidData(f"{self._what(member.name)} has {member.size} bytes")
                # Before the next member is looked for, which unpacks all of this one.
                unpacked = self._check_size(unpacked + member.size)
                if member.isreg():
                    yield File(PurePosixPath(member.name).parts, member.size, member.offset_data)
                # tarfile remembers every member that it has seen; millions are too many.
                archive.members.clear()  # type: ignore[attr-defined]  # not in its stub

    def _what(self, name: str) -> str:
        return f"{self._source}: member {name[:100]!r}"

    def _check_name(self, name: str) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise InvalidData(f"{self._what(name)} leaves the archive; make a clean one")

    def _check_size(self, unpacked: int) -> int:
        if unpacked > max(_SMALL, MAX_RATIO * self._source.stat().st_size):
            raise InvalidData(
                f"{self._source} unpacks to more than {MAX_RATIO} times its size and was not read"
            )
        return unpacked


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)
