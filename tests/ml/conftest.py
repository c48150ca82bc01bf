"""What tests of the numerics share: small real data and networks that are quick on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.datasets.base import Dataset, load
from overproof.ml.diffusion.latents import PixelSpace
from overproof.ml.distill.base import Problem
from overproof.ml.distill.prototypes import PrototypeSearch
from overproof.ml.distill.real_images import RealImages
from overproof.ml.models.base import Normalized, build
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.experts import ExpertTraining, write_trajectory
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    # The threads of a small network wait for each other longer than they work.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Real handwritten digits: 20 of each class for training, 10 for testing."""
    return load(DatasetSpec(name="digits", subset_per_class=20, test_subset_per_class=10), None)


@pytest.fixture(scope="session")
def small_convnet() -> PluginRef:
    return PluginRef(name="convnet", params={"width": 4, "depth": 2})


@pytest.fixture(scope="session")
def experts(
    digits: Dataset, small_convnet: PluginRef, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Trajectories of two experts over three epochs."""
    seeds = (0, 1)
    recipe = Recipe(
        epochs=3,
        learning_rate=0.05,
        momentum=0.0,
        weight_decay=0.0,
        batch_size=64,
    )
    training = ExpertTraining(
        Training(
            [build(small_convnet, digits.facts, seed, "expert") for seed in seeds],
            seeds,
            digits.train_images,
            digits.train_labels,
            recipe,
            means=Means.EAGER,
            device=CPU,
        )
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    paths = [tmp_path_factory.mktemp("experts") / str(seed) for seed in seeds]
    for path, trajectory in zip(paths, training.trajectories, strict=True):
        write_trajectory(trajectory, path)
    return paths


@pytest.fixture(scope="session")
def prototypes(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of each class, in the space of pixels."""
    search = PrototypeSearch(
        PixelSpace(),
        RealImages(digits, CPU),
        (digits.facts.channels, digits.facts.size),
        [2],
        expand=2,
        seed=0,
        device=CPU,
        rows_at_once=64,
    )
    for label in range(search.total_steps):
        search.step(label)
    path = tmp_path_factory.mktemp("prototypes") / "prototypes"
    search.prototypes(2).write(path)
    return path


@pytest.fixture(scope="session")
def problem(
    digits: Dataset,
    small_convnet: PluginRef,
    experts: list[Path],
    teacher: Normalized,
    prototypes: Path,
) -> Problem:
    return Problem(
        dataset=digits,
        network=small_convnet,
        images_per_class=2,
        seed=3,
        device=CPU,
        experts=experts,
        teacher=teacher,
        prototypes=prototypes,
    )


@pytest.fixture(scope="session")
def teacher(digits: Dataset) -> Normalized:
    """A network with batch norm that knows digits, in eval mode."""
    network = PluginRef(name="convnet", params={"width": 8, "depth": 2, "norm": "batch"})
    recipe = Recipe(
        epochs=15, learning_rate=0.1, momentum=0.9, weight_decay=5e-4, batch_size=50, cosine=1.0
    )
    training = Training(
        [build(network, digits.facts, 0, "teacher")],
        [0],
        digits.train_images,
        digits.train_labels,
        recipe,
        means=Means.EAGER,
        device=CPU,
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    (model,) = training.networks()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def taught(problem: Problem) -> Problem:
    """What methods work on that ask a teacher and no network."""
    return replace(problem, network=None, experts=())


@pytest.fixture
def colour_facts() -> ImageFacts:
    """Two classes of colour images of 8 × 8 pixels."""
    return ImageFacts(
        channels=3, size=(8, 8), classes=2, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)
    )


@pytest.fixture
def tiny_convnet(colour_facts: ImageFacts) -> Normalized:
    return build(PluginRef(name="convnet", params={"width": 4, "depth": 2}), colour_facts, 0)
