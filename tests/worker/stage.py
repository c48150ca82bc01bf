"""A whole pipeline in a folder, on a clock that moves only when told to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.directory import DirectoryStore
from overproof.artifacts.manifest import Manifest
from overproof.bus.announcing import announce_ready
from overproof.bus.base import Bus
from overproof.bus.memory import MemoryBus
from overproof.core.clock import ManualClock
from overproof.core.ids import ExperimentId, GroupId, JobId
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.core.states import JobKind
from overproof.errors import DatabaseUnavailable
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.results.views import Claim, Ended, JobView, Outcome, Progress, Renewal
from overproof.runtime.attempt import AttemptRunner
from overproof.runtime.executor import Execution, InlineExecutor
from overproof.runtime.hooks import Hooks
from overproof.runtime.reports import JobRequest
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from overproof.runtime.worker import Worker

# Real seconds; only a broken test waits for them.
PATIENCE_S = 20.0


@cache
def _empty_database() -> bytes:
    """A migrated SQLite file; copying it is much quicker than migrating for each test."""
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/results.db")
        migrate(engine)
        engine.dispose()
        return (Path(folder) / "results.db").read_bytes()


class FaultyRepository(ResultsRepository):
    """The real one, with outages on demand."""

    is_down = False

    def claim(
        self, kind: JobKind, *, owner: str, ttl_s: float, prefer: JobId | None = None
    ) -> Claim | None:
        self._answer()
        return super().claim(kind, owner=owner, ttl_s=ttl_s, prefer=prefer)

    def renew(self, claim: Claim, progress: Progress | None) -> Renewal:
        self._answer()
        return super().renew(claim, progress)

    def end(self, claim: Claim, outcome: Outcome) -> Ended:
        self._answer()
        return super().end(claim, outcome)

    def heartbeat(self, owner: str, kind: str, job_id: JobId | None) -> None:
        self._answer()
        super().heartbeat(owner, kind, job_id)

    def _answer(self) -> None:
        if self.is_down:
            raise DatabaseUnavailable("the database is down")


class CountingExecutor(InlineExecutor):
    """Remembers what it started."""

    def __init__(self, runner: AttemptRunner) -> None:
        super().__init__(runner)
        self.started: list[JobRequest] = []

    def start(self, request: JobRequest) -> Execution:
        self.started.append(request)
        return super().start(request)


class Stage:
    """Back-ends in `home`, and what tests do with them."""

    def __init__(
        self,
        home: Path,
        *,
        bus: Bus | None = None,
        store: ArtifactStore | None = None,
        **settings: Any,
    ) -> None:
        self.home = home
        self.clock = ManualClock()
        self.settings = Settings(home=home, preload=(), **settings)
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "results.db").exists():
            (home / "results.db").write_bytes(_empty_database())
        engine = create_engine(self.settings.database)
        self.repository = FaultyRepository(
            engine, retry=self.settings.retry, breaker_limit=50, now=self.clock.now
        )
        self.store = store or DirectoryStore(home / "artifacts")
        self.backends = Backends(
            bus=bus or MemoryBus(), store=self.store, repository=self.repository
        )
        self.executor = self.an_executor()

    def an_executor(self) -> CountingExecutor:
        runner = AttemptRunner(
            self.store, self.settings.for_child(), clock=self.clock, report_every_s=0.0
        )
        return CountingExecutor(runner)

    def a_worker(
        self,
        *kinds: JobKind,
        hooks: Hooks | None = None,
        owner: str = "",
        **settings: Any,
    ) -> Worker:
        return Worker(
            kinds or (JobKind.DISTILL,),
            self.backends,
            self.executor,
            settings=self.settings.model_copy(update=settings),
            clock=self.clock,
            hooks=hooks,
            owner=owner,
        )

    def submit(
        self, *units: Unit, announce: bool = True, name: str = "test", group: GroupId | None = None
    ) -> ExperimentId:
        """Each unit becomes a job of its own."""
        spec = ExperimentSpec.model_validate(
            {"name": name, "datasets": "digits", "whole_set": True, "networks": "convnet"}
        )
        submitted = self.repository.create_experiment(
            spec,
            units,
            groups={group: {"name": name}} if group else {},
            batch=lambda missing: [JobSpec.of((unit,)) for unit in missing],
        )
        if announce:
            announce_ready(self.backends.bus, submitted.ready, self.clock)
        return submitted.experiment_id

    def work(self, worker: Worker, turns: int = 500) -> None:
        """Step until the worker finds nothing more to do."""
        for _ in range(turns):
            worker.step(0.0 if worker.is_idle else PATIENCE_S)
            if worker.is_idle:
                return
        raise AssertionError(f"still busy after {turns} turns")

    def work_until_running(self, worker: Worker, unit: Unit, step: int = 1) -> None:
        """Step until the job has reported `step`."""
        self.work_until_started(worker)
        for _ in range(step):
            worker.step(PATIENCE_S)

    def work_until_started(self, worker: Worker) -> None:
        """Step until a job is handed to the executor."""
        count = len(self.executor.started)
        while len(self.executor.started) == count:
            worker.step(0.0)

    def job_of(self, unit: Unit) -> JobView:
        return self.repository.job(JobSpec.of((unit,)).job_id)

    def manifest_of(self, unit: Unit) -> Manifest:
        raw = self.store.read(keys.manifest(JobSpec.of((unit,)).id))
        assert raw is not None
        return Manifest.decode(raw)

    def bytes_of(self, unit: Unit, name: str = "numbers") -> bytes:
        """The file that a unit made, verified."""
        ref = self.manifest_of(unit).units[unit.id].files[name]
        return self.store.fetch(ref, self.home / "fetched").read_bytes()

    def damage(self, unit: Unit, name: str = "numbers") -> None:
        """Overwrite a file behind the store's back."""
        ref = self.manifest_of(unit).units[unit.id].files[name]
        (self.home / "artifacts" / ref.key).write_bytes(b"damaged")

    def put_manifest(self, unit: Unit, *, token: int = 7, result: Any = None) -> Manifest:
        """Write a finished manifest, as an attempt that died right after would have."""
        job = JobSpec.of((unit,))
        manifest = Manifest.model_validate(
            {"job_id": job.id, "token": token, "units": {unit.id: {"result": result or {}}}}
        )
        assert self.store.put_once(keys.manifest(job.id), manifest.encode())
        return manifest


def undisturbed_bytes(home: Path, units: Sequence[Unit]) -> list[bytes]:
    """What the units come to when nothing goes wrong."""
    stage = Stage(home)
    stage.submit(*units)
    stage.work(stage.a_worker(*JobKind))
    return [stage.bytes_of(unit) for unit in units]


@dataclasses.dataclass
class Lost(Hooks):
    """Counts lost claims."""

    lost: int = 0

    def after_lost(self, claim: Claim) -> None:
        self.lost += 1
