"""Numbers as they are typed behind options."""

from __future__ import annotations


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Numbers by commas; None for no text.

    Raises:
        InvalidSpec: they are none.
    """
    from overproof.errors import InvalidSpec

    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidSpec([f"{text[:40]!r} is no list of numbers by commas"], option) from None
