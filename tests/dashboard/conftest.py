"""A home folder with one experiment, filled through the real repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overproof.core.clock import SystemClock
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.builders import an_experiment, no_added_datasets

PAGES = Path(__file__).parents[2] / "dashboard" / "pages"


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backends]:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path))
    with Backends.from_settings(Settings.from_env()) as opened:
        yield opened


@pytest.fixture
def experiment_id(backends: Backends) -> str:
    planned = plan(an_experiment(whole_set=True), no_added_datasets)
    return submit(
        planned, repository=backends.repository, bus=backends.bus, clock=SystemClock()
    ).experiment_id
