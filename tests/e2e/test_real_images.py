"""Photographs from a user's archive to robust accuracy, by the commands that a user types."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from overproof.core.ids import ExperimentId
from overproof.core.spec import ExperimentSpec
from overproof.experiments.planner import plan
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

VARIABLE = "OVERPROOF_TEST_CIFAR10"
TRAINING_IMAGES, TEST_IMAGES = 50, 20  # of each class
CHANCE = 0.1

SPEC = """
name: photographs
datasets: cifar-10
methods: [{name: dm, params: {iterations: 5, real_batch: 32}}]
images_per_class: 10
networks: [{name: convnet, params: {width: 16, depth: 3}}]
protocol: {name: dsa, params: {epochs: 100}}
attacks: [{name: pgd, epsilons: [2/255, 8/255]}]
seeds: [0]
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of every class of the archive that the variable names."""
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"{VARIABLE} names no tar of CIFAR-10 as train/<class>/ and test/<class>/")
    into = tmp_path_factory.mktemp("archive") / "cifar10.tar"
    taken: Counter[tuple[str, ...]] = Counter()
    with tarfile.open(source) as whole, tarfile.open(into, "w") as part:
        for member in whole:
            folder = PurePosixPath(member.name).parts[-3:-1]
            limit = TRAINING_IMAGES if folder[:1] == ("train",) else TEST_IMAGES
            if member.isfile() and folder and taken[folder] < limit:
                taken[folder] += 1
                part.addfile(member, whole.extractfile(member))
    assert len(taken) == 20
    return into


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OVERPROOF_DEVICE", "cpu")
    return tmp_path / "home"


def test_added_photographs_are_distilled_trained_on_and_attacked(
    archive: Path, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)

    version = read_json("data", "add", "cifar-10", archive)["version"]
    rows: list[dict[str, Any]] = read_json("run", file)

    weak, strong = sorted(rows, key=lambda row: -row["robust"])
    assert (weak["epsilon"], strong["epsilon"]) == ("2/255", "8/255")
    assert weak["method"].startswith("distribution-matching")
    assert version[:8] in weak["dataset"]
    # 200 test images: three deviations of guessing are 0.064.
    assert CHANCE + 0.064 < weak["clean"] < 0.6
    assert 0 < weak["drop_rate"] < strong["drop_rate"] <= 1
    assert strong["robust"] < weak["robust"] < weak["clean"]
    with Backends.from_settings(Settings(home=home)) as backends:
        (experiment,) = backends.repository.experiments()
        units = backends.repository.units(ExperimentId(experiment.experiment_id))
    spec = ExperimentSpec.parse(SPEC)
    ids = {unit.unit_id for unit in units}
    assert ids == {unit.id for unit in plan(spec, lambda name: version).units}
    assert ids.isdisjoint(unit.id for unit in plan(spec, lambda name: "0" * 64).units)


def test_experiment_on_photographs_that_nobody_added_says_how_to_add_them(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)

    result = call("run", file, code=2)

    assert "overproof data add cifar-10" in result.output
