"""The manifest: what a finished job made, and by what it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from overproof.core.faults import faults_of
from overproof.core.refs import ArtifactRef
from overproof.errors import MalformedArtifact


class UnitManifest(BaseModel):
    """One unit's outcome: small numbers for the database and files for other jobs.

    `result` holds JSON scalars and short lists only (counts, accuracies, seconds); per-example
    values are in `files`.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    result: Mapping[str, Any] = Field(default_factory=dict)
    files: Mapping[str, ArtifactRef] = Field(default_factory=dict)


class Manifest(BaseModel):
    """Names the winning attempt of a job.

    Attributes:
        units: unit id → outcome; every unit of the job is there.
        facts: device, versions of code and libraries, settings that change no id.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    schema_version: int = 1
    job_id: str
    token: int
    units: Mapping[str, UnitManifest]
    facts: Mapping[str, Any] = Field(default_factory=dict)

    def encode(self) -> bytes:
        """UTF-8 JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            MalformedArtifact: the bytes are no manifest.
        """
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise MalformedArtifact(
                "manifest is unreadable: " + "; ".join(faults_of(error, model=cls))
            ) from None
