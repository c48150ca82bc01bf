"""The published results: the page tells what the raw numbers say, and they prove what they must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results.page import page
from benchmarks.results.studies import STUDIES, Study
from overproof.catalog.metrics import CLEAN_ACCURACY
from overproof.core.spec import ExperimentSpec

ROOT = Path(__file__).parents[2]
MEASURED = [study for study in STUDIES if (ROOT / study.numbers).exists()]
# Those that optimise images and take hard labels or labels of their own.
BETTER_THAN_RANDOM = {
    "distribution-matching",
    "gradient-matching",
    "siamese-augmentation",
    "efficient-parameterization",
    "representative-matching",
    "improved-distribution-matching",
    "trajectory-matching",
    "tesla",
    "difficulty-alignment",
}


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def read(study: Study) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(study.numbers.read_text())
    return numbers


def test_page_is_what_the_raw_numbers_say() -> None:
    assert Path("docs/results.md").read_text() == page(MEASURED), "run make results"


@pytest.mark.parametrize("study", MEASURED, ids=lambda study: study.name)
def test_raw_numbers_are_those_of_the_example_as_it_is_now(study: Study) -> None:
    fields = read(study)["spec"]

    # Fields that specs had then and have not now said nothing here.
    known = {name: fields[name] for name in fields if name in ExperimentSpec.model_fields}
    assert ExperimentSpec.model_validate(known) == study.spec


def test_methods_that_optimise_images_beat_random_ones() -> None:
    numbers = read(next(study for study in STUDIES if study.name == "fashion-mnist-small"))

    gains = {
        method["method"]: row
        for method in numbers["methods"]
        for row in method["differences"]
        if row["metric"] == CLEAN_ACCURACY
    }

    (dataset,) = numbers["spec"]["datasets"]
    assert dataset["subset_per_class"] >= 500
    assert 10 * dataset["test_subset_per_class"] >= 1_000
    assert len(numbers["spec"]["seeds"]) == 5
    assert {name for name, row in gains.items() if row["low"] > 0} >= BETTER_THAN_RANDOM
