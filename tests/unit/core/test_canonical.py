from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overproof.core.canonical import canonical_json, sha256_of

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values)
def test_canonical_json_round_trips(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(), scalars, min_size=2))
def test_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))

    assert canonical_json(backwards) == canonical_json(value)


def test_hash_of_a_known_value_never_changes() -> None:
    # SHA-256 of {"a":[1,2.5,"ä"],"b":null}, computed with sha256sum.
    assert canonical_json({"b": None, "a": [1, 2.5, "ä"]}) == '{"a":[1,2.5,"ä"],"b":null}'.encode()
    assert sha256_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"x": number})


def test_keys_that_are_not_strings_are_refused() -> None:
    with pytest.raises(TypeError, match="key 1 is not a string"):
        canonical_json({"a": [{1: 2}]})
