from __future__ import annotations

from collections.abc import Iterator

from collections.abc import Iterator

import pytest
import torch

from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.datasets.base import Dataset, load
from overproof.ml.distill.base import Problem

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    # The threads of a small network wait for each other longer than they work.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Real handwritten digits: 40 of each class for training, 20 for testing."""
    return load(DatasetSpec(name="digits", subset_per_class=40, test_subset_per_class=20), None)


@pytest.fixture(scope="session")
def small_convnet() -> PluginRef:
    return PluginRef(name="convnet", params={"width": 8, "depth": 2})


@pytest.fixture(scope="session")
def problem(digits: Dataset, small_convnet: PluginRef) -> Problem:
    return Problem(dataset=digits, network=small_convnet, images_per_class=2, seed=3, device=CPU)
