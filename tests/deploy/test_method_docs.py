"""The page on methods has a section for each method of the catalog, and says what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overproof.catalog.canvases import improved_matching_preset, parameterization_preset
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.taught import inversion_preset

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])


def paragraph(name: str, title: str) -> str:
    (found,) = re.findall(rf"^\*\*{title}:\*\* (.+?)\n(?:\n|$)", SECTIONS[name] + "\n", re.M | re.S)
    return " ".join(str(found).split())


def rows(name: str) -> list[list[str]]:
    """Cells of the table of a section, without its head."""
    lines = [line for line in SECTIONS[name].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_method_has_one_section() -> None:
    assert sorted(SECTIONS) == DISTILLATION.names()
    assert PAGE.count("\n## ") == len(SECTIONS)


@pytest.mark.parametrize("name", DISTILLATION.names())
def test_section_names_cost_differences_and_other_names(name: str) -> None:
    assert paragraph(name, "Cost")
    assert paragraph(name, "Differs")
    for alias in DISTILLATION.get(name).aliases:
        assert f"`{alias}`" in SECTIONS[name]


@pytest.mark.parametrize("name", DISTILLATION.names())
def test_source_is_that_of_the_catalog(name: str) -> None:
    assert paragraph(name, "Source") == f"{DISTILLATION.get(name).source}."


@pytest.mark.parametrize("name", DISTILLATION.names())
def test_parameters_and_their_defaults_are_those_of_the_catalog(name: str) -> None:
    fields = DISTILLATION.get(name).params.model_fields

    found = re.findall(
        r"`(\w+)` (\"[^\"]+\"|[^,]+)", paragraph(name, "Parameters").removesuffix(".")
    )

    listed = [(field, default.strip('"')) for field, default in found]
    assert listed == [(field, str(info.default)) for field, info in fields.items()]


def test_presets_of_canvases_are_those_of_the_catalog() -> None:
    for dataset, distance, rate, side, images in rows("efficient-parameterization"):
        preset = parameterization_preset(dataset.strip("`"))
        assert (preset.distance, preset.side) == (distance, int(side))
        assert (preset.learning_rate, preset.network_images) == (float(rate), int(images))


@pytest.mark.parametrize(
    ("name", "curriculum"),
    [("squeeze-recover-relabel", False), ("curriculum-data-augmentation", True)],
)
def test_presets_of_inversion_are_those_of_the_catalog(name: str, curriculum: bool) -> None:
    for where, *values in rows(name):
        side = int((re.findall(r"\d+", where.partition("(")[0]) or ["65"])[0])
        preset = inversion_preset(side, curriculum=curriculum)
        assert [float(value) for value in values] == [
            preset.iterations,
            preset.learning_rate,
            preset.statistics_weight,
            preset.smallest_crop,
            preset.jitter,
        ]


def test_presets_of_improved_matching_are_those_of_the_catalog() -> None:
    for names, weight, batch, interval, steps in rows("improved-distribution-matching"):
        datasets, _, sizes = names.partition(":")
        for dataset in re.findall(r"`([^`]+)`", datasets) or ["another"]:
            for size in re.findall(r"\d+", sizes) or ["10" if "up to" in names else "11"]:
                preset = improved_matching_preset(dataset, int(size))
                assert preset.entropy_weight == float(weight)
                assert (preset.real_batch, preset.interval) == (int(batch), int(interval))
                assert preset.training_steps == int(steps)
