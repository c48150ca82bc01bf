"""Names of stored bytes: a checked key and a reference with hash and size."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from overproof.errors import InvalidKey

# File systems allow 255 bytes for one name.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,254}")
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


def checked_prefix(prefix: str) -> str:
    """`prefix` if it is a folder of keys: empty for all, else a key and a slash.

    Raises:
        InvalidKey: it is not, or its key is not valid.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidKey(f"artifact prefix {prefix[:80]!r} does not end with a slash; add one")
        checked_key(prefix[:-1])
    return prefix


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
