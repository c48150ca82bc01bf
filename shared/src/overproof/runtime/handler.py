"""The seam between the pipeline and the work: a handler and all that it may touch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overproof.core.ids import UnitId
from overproof.core.spec import AssetSpec, DatasetSpec, JobSpec


@dataclass(frozen=True)
class UnitOutput:
    """What a handler made of one unit.

    Attributes:
        result: JSON scalars and short lists for the database (counts, accuracies, seconds).
        files: name → path of a finished file; uploaded after the handler returns.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A saved state of a job: the step it was taken after, and the file."""

    step: int
    path: Path


class JobContext(ABC):
    """All that a handler may touch of the world.

    Attributes:
        workdir: an empty folder of this attempt, removed afterwards.
        device: `cpu`, `cuda`, `cuda:1`, …
        batch_scale: 1.0; 0.5 when the job ran out of memory and is tried again at once.
    """

    workdir: Path
    device: str
    batch_scale: float

    @abstractmethod
    def input(self, unit_id: UnitId, name: str) -> Path:
        """The file `name` that the unit `unit_id` made; fetched and verified once.

        Raises:
            ArtifactMissing, ArtifactCorrupt: the producer's artifact is unusable; the producer
                is made READY again and this job is retried.
        """

    @abstractmethod
    def input_result(self, unit_id: UnitId) -> Mapping[str, Any]:
        """The small result of the unit `unit_id`."""

    @abstractmethod
    def dataset(self, spec: DatasetSpec) -> Path | None:
        """The packed file of a data set that was added to the store, None for a bundled one."""

    @abstractmethod
    def asset(self, kind: str, spec: AssetSpec) -> Path:
        """The file of what somebody brought: a distilled set (`sets`), `labels` or `weights`.

        Raises:
            ArtifactMissing, ArtifactCorrupt: it is not in the store, or with other bytes.
        """

    @abstractmethod
    def progress(self, step: int, total: int, **scalars: float) -> None:
        """Report progress. Cheap; call it every step.

        The speed and the time that is left are added.

        Raises:
            JobCancelled, ShuttingDown: the cooperative stop point; let it pass through.
                Checkpoint before it if a step is long: see `should_checkpoint`.
        """

    @abstractmethod
    def should_checkpoint(self) -> bool:
        """Whether a checkpoint is due: time or steps have passed, or the job is about to stop.

        Handlers ask after every step, save if so, and then call `progress`.
        """

    @abstractmethod
    def save_checkpoint(self, step: int, file: Path) -> None:
        """Store the state after `step`; older checkpoints of the job may be removed."""

    @abstractmethod
    def load_checkpoint(self) -> Checkpoint | None:
        """The latest usable checkpoint of any attempt; a corrupt one is skipped."""

    @abstractmethod
    def show(self, name: str, file: Path) -> None:
        """Let people see `file` under `name` while the job runs; replaces one of that name.

        Nothing depends on it: a store that is down is not waited for, and the file is dropped.
        """

    @abstractmethod
    def note(self, **facts: str | int | float | bool) -> None:
        """Add facts to the manifest: they change no id (chosen backend, halved batch)."""


class JobHandler(ABC):
    """Does the work of one task. Created in the child for each job; holds no state between jobs."""

    @abstractmethod
    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Make all units of `job`.

        Equal jobs give equal bytes on one device, whatever ran before in the process and however
        often the job was stopped and resumed.
        """
