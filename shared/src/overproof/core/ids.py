"""Ids of units, jobs, groups, comparisons and experiments.

A unit (one distilled set, one network, one attack cell of one victim) is named by its content, so
two experiments share it by asking for the same thing. A job is a batch of units that are cheaper
together; its id follows from theirs and enters no other hash.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NewType

from overproof.core.canonical import sha256_of
from overproof.core.states import JobKind

UnitId = NewType("UnitId", str)
JobId = NewType("JobId", str)
GroupId = NewType("GroupId", str)
ExperimentId = NewType("ExperimentId", str)
ComparisonId = NewType("ComparisonId", str)

_PREFIX = {JobKind.DISTILL: "dst", JobKind.TRAIN: "trn", JobKind.ATTACK: "atk"}
_DIGITS = 32

UNIT_ID_PATTERN = r"^(dst|trn|atk)-[0-9a-f]{32}$"
JOB_ID_PATTERN = r"^job-[0-9a-f]{32}$"


def unit_id_of(
    kind: JobKind, task: str, body: Mapping[str, Any], semantics: Mapping[str, int]
) -> UnitId:
    """The id of a unit: prefix of its kind and 32 hex digits of SHA-256.

    Args:
        kind: which worker makes it.
        task: name of the task within the kind.
        body: the unit's own spec with all defaults filled in, ids of needed units included.
        semantics: plug-in name → its integer `semantics`, raised by hand when output changes.
    """
    digest = sha256_of(
        {"kind": kind.value, "task": task, "body": dict(body), "semantics": dict(semantics)}
    )
    return UnitId(f"{_PREFIX[kind]}-{digest[:_DIGITS]}")


def job_id_of(unit_ids: Iterable[UnitId]) -> JobId:
    """The id of a job: the hash of the set of its units' ids."""
    return JobId(f"job-{sha256_of(sorted(unit_ids))[:_DIGITS]}")


def group_id_of(body: Mapping[str, Any]) -> GroupId:
    """The id of a group: units that differ only in their seeds have equal `body`."""
    return GroupId(f"grp-{sha256_of(dict(body))[:_DIGITS]}")


def comparison_id_of(kind: str, groups: Mapping[str, GroupId]) -> ComparisonId:
    """The id of a comparison: the hash of its kind and of its groups by their roles."""
    return ComparisonId(f"cmp-{sha256_of({'kind': kind, 'groups': dict(groups)})[:_DIGITS]}")


def new_experiment_id() -> ExperimentId:
    """A fresh id: the same spec submitted twice is two experiments that share all units."""
    return ExperimentId(f"exp-{secrets.token_hex(8)}")


def is_unit_id(text: str) -> bool:
    """Whether `text` has the form of a unit id."""
    return re.fullmatch(UNIT_ID_PATTERN, text) is not None


def is_job_id(text: str) -> bool:
    """Whether `text` has the form of a job id."""
    return re.fullmatch(JOB_ID_PATTERN, text) is not None
