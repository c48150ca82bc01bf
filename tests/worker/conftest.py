"""Fixtures of the tests of the worker runtime."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.stage import Stage
from tests.worker.tasks import register


@pytest.fixture(autouse=True, scope="session")
def _small_heap() -> Iterator[None]:
    """Each attempt collects garbage; what is imported by now need not be looked through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _tasks() -> None:
    register()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
