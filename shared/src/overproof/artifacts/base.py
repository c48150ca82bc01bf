"""The contract of the artifact store.

Commit protocol: an attempt writes its files under its own folder, then the manifest by `put_once`;
the first manifest wins and readers reach files through it alone. So two attempts of one job never
share a file, and what a dead attempt left is garbage, never a result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from overproof.core.refs import ArtifactRef


class ArtifactStore(ABC):
    """Stores whole files under keys. Thread-safe; may be used by many processes at once.

    All methods raise `InvalidKey` for a key that is not a plain relative path, and
    `StoreUnavailable` when the store does not answer or is full.
    """

    @abstractmethod
    def put(self, key: str, source: Path, *, media_type: str) -> ArtifactRef:
        """Store the file `source`, atomically: readers see all of it or nothing.

        A key that exists is replaced (only an attempt that is sent twice does that).
        """

    @abstractmethod
    def put_once(self, key: str, data: bytes) -> bool:
        """Store `data` unless the key exists; whether it was stored. The first writer wins."""

    @abstractmethod
    def fetch(self, ref: ArtifactRef, into: Path) -> Path:
        """Write the file to the path `into` (its folder is made) and return that path.

        Raises:
            ArtifactMissing: there is no such key.
            ArtifactCorrupt: size or SHA-256 differ from `ref`; nothing is left at `into`.
        """

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The bytes of a small object (manifest, checkpoint index), None when absent."""

    @abstractmethod
    def size_bytes(self, key: str) -> int | None:
        """How many bytes the object has, None when absent."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether the key is there."""

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the folder `prefix` (ends with `/`, or "" for all), sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the key; absent is fine."""

    @abstractmethod
    def check(self) -> str:
        """Write, read and delete a probe; one line on the store, for `doctor`."""
