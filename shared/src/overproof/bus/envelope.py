"""The one form that all messages have."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from overproof.core.faults import faults_of
from overproof.core.states import JobKind
from overproof.errors import MalformedMessage

SCHEMA_VERSION = 1
MAX_BYTES = 64 * 1024


class MessageType(StrEnum):
    """What a message says."""

    JOB_READY = "JOB_READY"
    JOB_STARTED = "JOB_STARTED"
    JOB_ENDED = "JOB_ENDED"
    ARTIFACT_UPLOADED = "ARTIFACT_UPLOADED"
    DEAD_LETTER = "DEAD_LETTER"


class Envelope(BaseModel):
    """A message. Unknown fields are ignored, so that a newer sender can be understood.

    Attributes:
        message_id: unique; a message sent again has the same.
        job_id: the job that it is about, and the key that orders it; "" when about none.
        payload: JSON of the type; tensors never, they travel as `ArtifactRef`.
        occurred_at: aware, UTC.
    """

    # NaN and infinity stay what they are, for `encode` to refuse; else they silently become null.
    model_config = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    schema_version: int = SCHEMA_VERSION
    message_id: Annotated[str, Field(min_length=1, max_length=64)]
    type: MessageType
    job_id: Annotated[str, Field(max_length=64)] = ""
    kind: JobKind | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    occurred_at: AwareDatetime

    @classmethod
    def new(
        cls,
        type: MessageType,
        *,
        now: float,
        job_id: str = "",
        kind: JobKind | None = None,
        payload: dict[str, Any] | None = None,
    ) -> Envelope:
        """A message with a fresh id, stamped with `now` in seconds since the epoch."""
        return cls(
            message_id=uuid.uuid4().hex,
            type=type,
            job_id=job_id,
            kind=kind,
            payload=payload or {},
            occurred_at=datetime.fromtimestamp(now, UTC),
        )

    def encode(self) -> bytes:
        """UTF-8 JSON.

        Raises:
            ValueError: it is larger than 64 KiB; large things belong into the artifact store. Or
                the payload holds NaN or infinity, which JSON does not know.
        """
        fields = self.model_dump(mode="json")
        try:
            text = json.dumps(fields, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        except ValueError:
            raise ValueError(
                f"a {self.type} message holds NaN or infinity; send a number or leave it out"
            ) from None
        raw = text.encode()
        if len(raw) > MAX_BYTES:
            raise ValueError(
                f"a {self.type} message of {len(raw)} bytes exceeds {MAX_BYTES}; "
                "put the data into the artifact store and send its reference"
            )
        return raw

    @classmethod
    def decode(cls, raw: bytes) -> Envelope:
        """Read a message.

        Raises:
            MalformedMessage: not JSON, not an envelope, too large, or of an unknown version.
        """
        if len(raw) > MAX_BYTES:
            raise MalformedMessage(raw, f"larger than {MAX_BYTES} bytes")
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(raw, f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise MalformedMessage(raw, "not a JSON object")
        if value.get("schema_version") != SCHEMA_VERSION:
            raise MalformedMessage(
                raw, f"schema_version {value.get('schema_version')!r}; this is {SCHEMA_VERSION}"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise MalformedMessage(raw, "; ".join(faults_of(error, model=cls))) from None
