from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overproof.core.ids import is_job_id, is_unit_id, job_id_of, new_experiment_id, unit_id_of
from overproof.core.states import JobKind

BODY: dict[str, Any] = {"dataset": "digits", "seed": 0}


def test_prefix_tells_the_kind() -> None:
    prefixes = [unit_id_of(kind, "t", BODY, {})[:4] for kind in JobKind]

    assert prefixes == ["dst-", "trn-", "atk-"]


@pytest.mark.parametrize(
    "changed",
    [
        (JobKind.TRAIN, "synthesis", BODY, {"a": 1}),
        (JobKind.DISTILL, "selection", BODY, {"a": 1}),
        (JobKind.DISTILL, "synthesis", BODY | {"seed": 1}, {"a": 1}),
        (JobKind.DISTILL, "synthesis", BODY | {"seed": 0.0}, {"a": 1}),
        (JobKind.DISTILL, "synthesis", BODY, {"a": 2}),
        (JobKind.DISTILL, "synthesis", BODY, {"b": 1}),
    ],
)
def test_every_hashed_part_changes_the_id(changed: Any) -> None:
    assert unit_id_of(*changed) != unit_id_of(JobKind.DISTILL, "synthesis", BODY, {"a": 1})


@given(
    st.lists(st.from_regex(r"dst-[0-9a-f]{32}", fullmatch=True), min_size=1, unique=True),
    st.randoms(),
)
def test_id_of_a_job_follows_from_the_set_of_its_units(units: list[Any], random: Any) -> None:
    shuffled = random.sample(units, len(units))

    assert job_id_of(shuffled) == job_id_of(units)
    assert is_job_id(job_id_of(units))


def test_forms_are_told_apart() -> None:
    unit = unit_id_of(JobKind.TRAIN, "t", BODY, {})

    assert is_unit_id(unit)
    assert not is_unit_id(unit + "\n")
    assert not is_unit_id("job-" + "0" * 32)
    assert not is_job_id(unit)


def test_experiments_are_never_the_same() -> None:
    assert new_experiment_id() != new_experiment_id()
