"""An embedded home of its own for each test, and a small experiment in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overproof.core.ids import ExperimentId
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.command_line import SPEC, read_json


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def backends(home: Path) -> Iterator[Backends]:
    with Backends.from_settings(Settings.from_env()) as opened:
        yield opened


@pytest.fixture
def submitted(home: Path, spec: Path) -> ExperimentId:
    return ExperimentId(read_json("submit", spec)["experiment_id"])
