"""The page on attacks names what the catalog holds, and nothing else."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from overproof.catalog.attacks import ATTACKS, attack
from overproof.catalog.suites import SUITES
from overproof.core.semantics import Semantics
from overproof.evaluation import reliability

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_attack_is_listed_once() -> None:
    listed = [name for row in table("The catalog") for name in names_in(row[0])]

    assert sorted(listed) == ATTACKS.names()


def test_papers_are_those_of_the_catalog() -> None:
    for row in table("The catalog"):
        papers = set(re.findall(r"\d{4}\.\d{5}", row[3]))
        for name in names_in(row[0]):
            assert papers <= set(re.findall(r"\d{4}\.\d{5}", attack(name).source)), name


def test_every_reading_and_suite_is_listed() -> None:
    assert [row[0] for row in table('What "robust" means')] == list(Semantics)
    assert [names_in(row[0])[0] for row in table("Suites")] == list(SUITES)


def test_every_warning_is_listed_with_its_limit() -> None:
    rows = {names_in(row[0])[0]: row[1] for row in table("Doubtful numbers")}
    limits = reliability.Thresholds()

    assert set(rows) == {
        reliability.NEAR_CHANCE,
        reliability.PROBABILITY_OUTPUTS,
        reliability.FLAT_GRADIENTS,
        reliability.SQUARE_GAIN,
        reliability.WEAK_CROSS_ENTROPY,
        reliability.SUBSTITUTED_LOSS,
    }
    assert f"{limits.chance_multiple:g} / K" in rows[reliability.NEAR_CHANCE]
    assert f"{limits.flat_share * 100:g} %" in rows[reliability.FLAT_GRADIENTS]
    assert f"{limits.square_gain * 100:g} %" in rows[reliability.SQUARE_GAIN]
    assert f"{limits.loss_gap * 100:g} point" in rows[reliability.WEAK_CROSS_ENTROPY]
    assert len(fields(limits)) == 4  # one for each warning but the two without a limit
