"""One byte string for one value, whatever the order in which it was written."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; equal values give equal bytes.

    Args:
        value: None, bool, int, finite float, str, and lists, tuples and str-keyed dicts of these.

    Raises:
        ValueError: a number is NaN or infinite.
        TypeError: a value of another type, or a key that is not a string.

    1 and 1.0 give different bytes: typed params make sure that a field has one type.
    """
    _refuse_other_keys(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def sha256_of(value: Any) -> str:
    """Hex SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _refuse_other_keys(value: Any) -> None:
    # json.dumps would turn the keys 1 and True into strings in silence.
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a string")
            _refuse_other_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_other_keys(item)
