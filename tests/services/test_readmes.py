"""What the README of a service says exists in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overproof.bus.topics import Group, Topic
from overproof.runtime.settings import settings_table

SERVICES = Path(__file__).parents[2] / "services"
NAMES = ["aggregator", "attacker", "distiller", "trainer"]


@pytest.mark.parametrize("name", NAMES)
def test_readme_names_settings_and_topics_that_exist(name: str) -> None:
    text = (SERVICES / name / "README.md").read_text()

    variables = set(re.findall(r"OVERPROOF_[A-Z0-9_]+", text))
    topics = set(re.findall(r"`((?:jobs|events)\.[a-z]+)`", text))

    assert variables <= {row.variable for row in settings_table()}
    assert variables
    assert topics <= {topic.value for topic in Topic}
    assert topics


@pytest.mark.parametrize("name", NAMES)
def test_readme_shows_the_command_that_starts_it(name: str) -> None:
    text = (SERVICES / name / "README.md").read_text()

    assert f"python -m services.{name}\n" in text
    assert (SERVICES / name / "__main__.py").exists()


def test_aggregator_names_its_group() -> None:
    text = (SERVICES / "aggregator" / "README.md").read_text()

    assert f"as the group `{Group.AGGREGATOR.value}`" in text
