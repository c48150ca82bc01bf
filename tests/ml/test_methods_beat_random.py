"""On photographs, images made by the methods teach more than as many random ones.

One seed and few steps; docs/results.md has all methods over five seeds.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.protocols import PROTOCOLS
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.datasets.base import Dataset, load
from overproof.ml.datasets.packing import pack
from overproof.ml.distill.base import DistilledSet, Problem
from overproof.ml.models.base import build
from overproof.ml.train.evaluation import predictions_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from tests.photographs import part_of_cifar10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CPU = torch.device("cpu")
NETWORK = PluginRef(name="convnet", params={"width": 16})
IMAGES_PER_CLASS = 10
PROTOCOL = PluginRef(name="dsa", params={"epochs": 200})
# Step sizes are larger than published, since steps are few.
SETTINGS: dict[str, dict[str, Any]] = {
    "dm": {"iterations": 60, "real_batch": 64},
    "dsa": {
        "iterations": 8,
        "outer_loop": 5,
        "inner_loop": 5,
        "real_batch": 64,
        "learning_rate": 2.0,
    },
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """500 images of each class of CIFAR-10 for training, 200 for testing."""
    folder = tmp_path_factory.mktemp("photographs")
    source = part_of_cifar10(folder / "cifar10.tar", training=500, test=200)
    pack("cifar-10", source, folder / "packed")
    return load(DatasetSpec(name="cifar-10"), folder / "packed")


def made_by(method: str, params: dict[str, Any], data: Dataset, seed: int) -> DistilledSet:
    problem = Problem(
        dataset=data, network=NETWORK, images_per_class=IMAGES_PER_CLASS, seed=seed, device=CPU
    )
    ref = PluginRef(name=method, params=params)
    making = DISTILLATION.load(method)(DISTILLATION.resolve(ref), problem)
    for index in range(making.total_steps):
        making.step(index)
    made: DistilledSet = making.result()
    return made


def accuracy_on(made: DistilledSet, data: Dataset, seed: int) -> float:
    recipe = PROTOCOLS.load(PROTOCOL.name)(PROTOCOLS.resolve(PROTOCOL), mirrors=data.mirrors)
    training = Training(
        [build(NETWORK, data.facts, seed)],
        [seed],
        made.images,
        made.targets,
        recipe,
        means=Means.EAGER,
        device=CPU,
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    (network,) = training.networks()
    predictions = predictions_of(network, data.test_images, device=CPU, rows_at_once=64)
    return float((predictions == data.test_labels).float().mean())


@pytest.fixture(scope="module")
def by_random(photographs: Dataset) -> float:
    """Mean over two draws: that of a single one says little."""
    seeds = (0, 1)
    return sum(
        accuracy_on(made_by("random", {}, photographs, seed), photographs, seed) for seed in seeds
    ) / len(seeds)


@pytest.mark.parametrize("method", SETTINGS)
def test_distilled_images_teach_more_than_random_ones(
    method: str, photographs: Dataset, by_random: float
) -> None:
    made = made_by(method, SETTINGS[method], photographs, 0)

    accuracy = accuracy_on(made, photographs, 0)
    # DM gained 3 points here and DSA 8; another processor rounds otherwise and moves them by one.
    assert accuracy > by_random + 0.01
