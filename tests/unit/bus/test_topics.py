from __future__ import annotations

import re

import pytest

from overproof.bus.topics import Topic
from overproof.core.states import JobKind


@pytest.mark.parametrize("kind", JobKind)
def test_every_kind_of_job_has_a_topic(kind: JobKind) -> None:
    assert Topic.jobs(kind).value == f"jobs.{kind.value}"


def test_every_topic_but_the_dead_ones_has_a_dead_one() -> None:
    living = [topic for topic in Topic if not topic.value.startswith("dead.")]

    assert {topic.dead for topic in living} == set(Topic) - set(living)


def test_names_hold_no_underscore() -> None:
    # Kafka's metrics take dots for underscores, so the two must not both appear.
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)+", topic.value) for topic in Topic)
