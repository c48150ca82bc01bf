"""Fixtures of the tests of the worker runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.stage import Stage
from tests.worker.tasks import register


@pytest.fixture(autouse=True)
def _tasks() -> None:
    register()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
