"""Names of stored bytes: a checked key and a reference with hash and size."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from overproof.errors import InvalidKey

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]*")
_MAX_LENGTH = 512


def checked_key(key: str) -> str:
    """`key` if it is a plain relative path of safe characters.

    Raises:
        InvalidKey: it is empty, absolute, too long, or has a part such as `..`.
    """
    parts = key.split("/")
    if len(key) > _MAX_LENGTH or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidKey(
            f"artifact key {key[:80]!r} is not a plain relative path; "
            "use letters, digits and . _ = + - between slashes"
        )
    return key


def _validated_key(key: str) -> str:
    try:
        return checked_key(key)
    except InvalidKey as error:
        raise ValueError(str(error)) from None


ArtifactKey = Annotated[str, AfterValidator(_validated_key)]


class ArtifactRef(BaseModel):
    """One stored file: where it is and what its bytes must be."""

    model_config = ConfigDict(frozen=True)

    key: ArtifactKey
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    media_type: str = "application/octet-stream"
