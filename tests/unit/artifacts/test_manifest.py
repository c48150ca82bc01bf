from __future__ import annotations

import pytest

from overproof.artifacts.manifest import Manifest, UnitManifest
from overproof.core.refs import ArtifactRef
from overproof.errors import MalformedArtifact


def a_manifest() -> Manifest:
    ref = ArtifactRef(key="jobs/job-a/1/images", sha256="0" * 64, size_bytes=3)
    return Manifest(
        job_id="job-a",
        token=1,
        units={"dst-a": UnitManifest(result={"seconds": 1.5}, files={"images": ref})},
        facts={"device": "cpu"},
    )


def test_manifest_comes_back() -> None:
    assert Manifest.decode(a_manifest().encode()) == a_manifest()


def test_fields_of_a_newer_version_are_ignored() -> None:
    raw = a_manifest().encode().replace(b'"token":1', b'"token":1,"added_later":[1]')

    assert Manifest.decode(raw) == a_manifest()


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"job_id": "job-a"}'])
def test_bytes_that_are_no_manifest_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedArtifact, match="manifest is unreadable"):
        Manifest.decode(raw)


def test_manifest_that_names_a_file_outside_the_store_is_malformed() -> None:
    raw = a_manifest().encode().replace(b"jobs/job-a/1/images", b"../../etc/passwd")

    with pytest.raises(MalformedArtifact, match="key"):
        Manifest.decode(raw)
