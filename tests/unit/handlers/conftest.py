from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from overproof.core.ids import UnitId
from overproof.core.spec import AssetSpec, DatasetSpec
from overproof.errors import ShuttingDown
from overproof.runtime.handler import Checkpoint, JobContext, UnitOutput


class FolderContext(JobContext):
    """A context whose world is a folder: outputs of earlier jobs, and checkpoints.

    Args:
        folder: kept between the attempts of a job.
        inputs: outputs of other units.
        stop_after: the step after which the worker shuts down, saving a checkpoint if asked.
        checkpoint_every: steps between two checkpoints, 0 for none.
        batch_scale: as after running out of memory.
        assets: what somebody brought, by its version.

    Attributes:
        shown: folder of what the job shows, kept between attempts as the store keeps it.
    """

    def __init__(
        self,
        folder: Path,
        inputs: Mapping[UnitId, UnitOutput],
        *,
        stop_after: int | None = None,
        checkpoint_every: int = 0,
        batch_scale: float = 1.0,
        assets: Mapping[str, Path] | None = None,
    ) -> None:
        self.device = "cpu"
        self.batch_scale = batch_scale
        attempts = len(list(folder.glob("attempt-*")))
        self.workdir = folder / f"attempt-{attempts}"
        self.workdir.mkdir(parents=True)
        self.facts: dict[str, str | int | float | bool] = {}
        self.steps: list[tuple[int, int]] = []
        self.scalars: dict[str, float] = {}
        self._inputs = inputs
        self._assets = assets or {}
        self._stop_after = stop_after
        self._every = checkpoint_every
        self._saved = folder / "checkpoints"
        self._saved.mkdir(exist_ok=True)
        self.shown = folder / "shown"
        self.shown.mkdir(exist_ok=True)
        self._asked = 0

    def input(self, unit_id: UnitId, name: str) -> Path:
        return self._inputs[unit_id].files[name]

    def input_result(self, unit_id: UnitId) -> Mapping[str, Any]:
        return self._inputs[unit_id].result

    def dataset(self, spec: DatasetSpec) -> Path | None:
        return None

    def asset(self, kind: str, spec: AssetSpec) -> Path:
        return self._assets[spec.version]

    def progress(self, step: int, total: int, **scalars: float) -> None:
        self.steps.append((step, total))
        self.scalars = scalars
        if step == self._stop_after:
            raise ShuttingDown("the worker ends")

    def should_checkpoint(self) -> bool:
        self._asked += 1
        return bool(self._every) and self._asked % self._every == 0

    def save_checkpoint(self, step: int, file: Path) -> None:
        (self._saved / str(step)).write_bytes(file.read_bytes())

    def load_checkpoint(self) -> Checkpoint | None:
        steps = sorted(int(path.name) for path in self._saved.iterdir())
        return Checkpoint(steps[-1], self._saved / str(steps[-1])) if steps else None

    def show(self, name: str, file: Path) -> None:
        (self.shown / name).write_bytes(file.read_bytes())

    def note(self, **facts: str | int | float | bool) -> None:
        self.facts.update(facts)


@pytest.fixture
def a_context(tmp_path: Path) -> Callable[..., FolderContext]:
    """A new attempt of the job called `name`."""

    def make(
        name: str = "job", inputs: Mapping[UnitId, UnitOutput] | None = None, **over: Any
    ) -> FolderContext:
        return FolderContext(tmp_path / name, inputs or {}, **over)

    return make
