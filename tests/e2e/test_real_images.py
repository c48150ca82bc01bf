"""Photographs from a user's archive to robust accuracy, by the commands that a user types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overproof.core.ids import ExperimentId
from overproof.core.spec import ExperimentSpec
from overproof.experiments.planner import plan
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json
from tests.photographs import part_of_cifar10

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

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
    """The first images of every class of CIFAR-10."""
    into = tmp_path_factory.mktemp("archive") / "cifar10.tar"
    return part_of_cifar10(into, training=TRAINING_IMAGES, test=TEST_IMAGES)


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
