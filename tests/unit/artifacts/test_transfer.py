from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from overproof.artifacts.transfer import CHUNK_BYTES, HashingReader, disk_errors, write_verified
from overproof.core.refs import ArtifactRef
from overproof.errors import ArtifactCorrupt, StoreUnavailable


def test_reader_names_the_bytes_that_it_gave() -> None:
    data = b"abc" * CHUNK_BYTES
    reader = HashingReader(BytesIO(data))

    given = reader.read(5) + b"".join(reader.chunks())

    assert given == data
    assert reader.ref("key", "text/plain") == ArtifactRef(
        key="key",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        media_type="text/plain",
    )


def test_full_device_is_said_plainly() -> None:
    with (
        pytest.raises(StoreUnavailable, match="the file does not fit: No space left"),
        disk_errors("the file"),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_copying_stops_at_the_first_chunk_too_many(tmp_path: Path) -> None:
    ref = ArtifactRef(key="key", sha256=hashlib.sha256(b"ab").hexdigest(), size_bytes=2)
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"a"

    with pytest.raises(ArtifactCorrupt, match="more than 2 bytes"):
        write_verified(endless(), ref, tmp_path / "copy")

    assert len(taken) == 3
    assert list(tmp_path.iterdir()) == []


def test_source_that_fails_midway_leaves_nothing_and_keeps_its_error(tmp_path: Path) -> None:
    ref = ArtifactRef(key="key", sha256="0" * 64, size_bytes=2)

    def failing() -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("connection lost")

    with pytest.raises(RuntimeError, match="connection lost"):
        write_verified(failing(), ref, tmp_path / "copy")

    assert list(tmp_path.iterdir()) == []
