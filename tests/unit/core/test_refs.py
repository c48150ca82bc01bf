from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from overproof.core.refs import ArtifactRef, checked_key, checked_prefix
from overproof.errors import InvalidKey

PARTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,20}", fullmatch=True)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(PARTS, min_size=1, max_size=8).map("/".join))
def test_plain_relative_paths_are_keys(key: str) -> None:
    assert checked_key(key) == key
    assert checked_prefix(f"{key}/") == f"{key}/"


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
@example("..")
@example("a/../b")
@example("a/.")
@example("/a")
@example("a//b")
@example("a/")
@example("a\\b")
@example("a\n")
@example("~/a")
@example("a\x00")
@example("ａ")  # a full-width letter, which \w would take
def test_no_accepted_key_can_leave_its_folder(text: str) -> None:
    try:
        key = checked_key(text)
    except InvalidKey:
        return
    assert re.fullmatch(r"[A-Za-z0-9._=+/-]+", key.replace("_", "-"))
    assert all(part and not part.startswith((".", "-")) for part in key.split("/"))


def test_parts_and_keys_have_a_longest_form() -> None:
    assert checked_key("x" * 255)
    assert checked_key("/".join(["x" * 127] * 4))
    for long in ("x" * 256, "/".join(["x" * 127] * 4) + "/x"):
        with pytest.raises(InvalidKey):
            checked_key(long)


def test_long_key_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidKey) as raised:
        checked_key("/" * 10_000)

    assert len(str(raised.value)) < 300


def test_prefix_is_everything_or_a_folder() -> None:
    assert checked_prefix("") == ""
    for prefix in ("a", "/", "a//", "../", "a/b"):
        with pytest.raises(InvalidKey):
            checked_prefix(prefix)


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../x"},
        {"sha256": "0" * 63},
        {"sha256": "G" * 64},
        {"sha256": "A" * 64},
        {"size_bytes": -1},
    ],
)
def test_reference_with_an_impossible_field_is_refused(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"key": "a/b", "sha256": "0" * 64, "size_bytes": 0}

    ArtifactRef.model_validate(fields)
    with pytest.raises(ValidationError):
        ArtifactRef.model_validate(fields | change)
