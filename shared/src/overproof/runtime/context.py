"""The context of one attempt: inputs by way of the cache, checkpoints, progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.manifest import Manifest, UnitManifest
from overproof.artifacts.transfer import media_type_of
from overproof.core.clock import Clock
from overproof.core.ids import JobId, UnitId
from overproof.core.refs import ArtifactRef
from overproof.core.spec import AssetSpec, DatasetSpec
from overproof.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    MalformedArtifact,
    PermanentError,
    StoreUnavailable,
)
from overproof.runtime.cache import ArtifactCache
from overproof.runtime.checkpoints import Checkpoints
from overproof.runtime.handler import Checkpoint, JobContext
from overproof.runtime.reports import Advanced, JobRequest, UnusableInput
from overproof.runtime.stopping import StopRequest

_log = logging.getLogger(__name__)

_BUNDLED = "bundled-"
_WORDS = {
    "datasets": "data set",
    "sets": "distilled set",
    "labels": "soft labels",
    "weights": "network",
}


class AttemptContext(JobContext):
    """What the handler of one attempt touches; see `JobContext` for the contract.

    Args:
        request: the attempt.
        store: waits out outages by itself.
        shows_in: the store as it is, for files that nobody waits for.
        cache: where inputs are fetched to.
        folder: private to the attempt; the work folder and links to inputs are made in it.
        device: what the handler computes on.
        stop: raised by `progress`.
        report: takes progress; called at most every `report_every_s`.
        clock: measures those times.
        checkpoint_every_s: how often a checkpoint is due.
        checkpoint_every_steps: after how many questions one is due as well; None for time alone.

    Attributes:
        facts: what the handler noted.
        unusable: the input that could not be read, if that is why the handler failed.
    """

    def __init__(
        self,
        request: JobRequest,
        *,
        store: ArtifactStore,
        shows_in: ArtifactStore,
        cache: ArtifactCache,
        folder: Path,
        device: str,
        stop: StopRequest,
        report: Callable[[Advanced], None],
        clock: Clock,
        checkpoint_every_s: float,
        report_every_s: float,
        checkpoint_every_steps: int | None = None,
        batch_scale: float = 1.0,
    ) -> None:
        self.device = device
        self.batch_scale = batch_scale
        self.workdir = folder / "work"
        self.workdir.mkdir(parents=True)
        self.facts: dict[str, str | int | float | bool] = {}
        self.unusable: UnusableInput | None = None
        self._request = request
        self._store = store
        self._shows_in = shows_in
        self._cache = cache
        self._folder = folder
        self._stop = stop
        self._report = report
        self._clock = clock
        self._report_every_s = report_every_s
        self._reported_at = -math.inf
        self._checkpoint_every_s = checkpoint_every_s
        self._checkpoint_at = clock.monotonic()
        self._checkpoint_every_steps = checkpoint_every_steps
        self._asked = 0  # since the last checkpoint
        self._first: tuple[int, float] | None = None  # step and time of the first report
        self._asks = False  # whether the handler checkpoints at all
        self._is_told = False  # that it is about to be stopped
        self._checkpoints = Checkpoints(store, request.job.id)
        self._manifests: dict[JobId, Manifest] = {}

    # ---- inputs ------------------------------------------------------------------------------

    def input(self, unit_id: UnitId, name: str) -> Path:
        """A read-only link to the cached file."""
        into = self._folder / "inputs" / f"{unit_id}.{name}"
        if into.exists():
            return into
        manifest, unit = self._input_unit(unit_id)
        try:
            if name not in unit.files:
                raise ArtifactMissing(
                    f"unit {unit_id} has no file {name!r}; it has {', '.join(unit.files) or 'none'}"
                )
            return self._cache.link(self._store, unit.files[name], into)
        except (ArtifactMissing, ArtifactCorrupt):
            self._blame(JobId(manifest.job_id), manifest.token)
            raise

    def input_result(self, unit_id: UnitId) -> Mapping[str, Any]:
        """From the manifest of the unit's job."""
        return self._input_unit(unit_id)[1].result

    def dataset(self, spec: DatasetSpec) -> Path | None:
        """A read-only link to the cached file; its version is its hash."""
        if not spec.version or spec.version.startswith(_BUNDLED):
            return None
        again = f"overproof data add {spec.name} PATH"
        return self._asset("datasets", spec.name, spec.version, again=again)

    def asset(self, kind: str, spec: AssetSpec) -> Path:
        """A read-only link to the cached file; its version is its hash."""
        command = "overproof import" if kind in ("sets", "labels") else f"overproof {kind} add"
        return self._asset(kind, spec.name, spec.version, again=f"{command} {spec.name} PATH")

    def _asset(self, kind: str, name: str, version: str, *, again: str) -> Path:
        key = keys.asset(kind, version)
        size_bytes = self._store.size_bytes(key)
        if size_bytes is None:
            raise ArtifactMissing(
                f"{_WORDS[kind]} {name} of version {version[:12]}… is not in the store; "
                f"add it again with `{again}`"
            )
        ref = ArtifactRef(key=key, sha256=version, size_bytes=size_bytes)
        return self._cache.link(self._store, ref, self._folder / kind / version)

    def _input_unit(self, unit_id: UnitId) -> tuple[Manifest, UnitManifest]:
        job_id = self._request.inputs.get(unit_id)
        if job_id is None:
            raise PermanentError(
                f"job {self._request.job.id} reads unit {unit_id}, which is none of its inputs; "
                "its unit must name it in `needs`"
            )
        manifest = self._manifest(job_id)
        unit = manifest.units.get(unit_id)
        if unit is None:
            self._blame(job_id, manifest.token)
            raise ArtifactMissing(
                f"the manifest of job {job_id} lacks unit {unit_id}; that job must run again"
            )
        return manifest, unit

    def _manifest(self, job_id: JobId) -> Manifest:
        if job_id not in self._manifests:
            raw = self._store.read(keys.manifest(job_id))
            if raw is None:
                self._blame(job_id, None)
                raise ArtifactMissing(f"job {job_id} has no manifest; that job must run again")
            try:
                self._manifests[job_id] = Manifest.decode(raw)
            except MalformedArtifact as error:
                # For the reader this is transient: the producer makes a new one.
                self._blame(job_id, None)
                raise ArtifactCorrupt(f"job {job_id}: {error}; that job must run again") from error
        return self._manifests[job_id]

    def _blame(self, job_id: JobId, manifest_token: int | None) -> None:
        self.unusable = UnusableInput(job_id=job_id, manifest_token=manifest_token)

    # ---- progress ----------------------------------------------------------------------------

    def progress(self, step: int, total: int, **scalars: float) -> None:
        """The cooperative stop point; most calls only compare two numbers."""
        now = self._clock.monotonic()
        if now - self._reported_at >= self._report_every_s or step >= total:
            self._reported_at = now
            finite = {name: float(value) for name, value in scalars.items() if math.isfinite(value)}
            finite |= self._speed(step, total, now)
            self._report(Advanced(step=step, total=total, scalars=finite))
        # A handler that checkpoints is stopped only after it was told to: the request may have
        # come between its question and this call.
        if not self._stop.wants_checkpoint or self._is_told or not self._asks:
            self._stop.raise_if_set()

    def _speed(self, step: int, total: int, now: float) -> Mapping[str, float]:
        """Of this attempt so far; nothing before there are two times to compare."""
        if self._first is None:
            self._first = step, now
        steps, seconds = step - self._first[0], now - self._first[1]
        if steps <= 0 or seconds <= 0:
            return {}
        rate = steps / seconds
        return {"steps_per_s": rate, "seconds_left": max(0, total - step) / rate}

    def show(self, name: str, file: Path) -> None:
        """Stored under the attempt's token, so that attempts never write one file."""
        key = keys.shown_file(self._request.job.id, self._request.token, name)
        try:
            self._shows_in.put(key, file, media_type=media_type_of(file))
        except StoreUnavailable as error:
            _log.warning("%s is not shown: %s", name, error)

    def note(self, **facts: str | int | float | bool) -> None:
        """Kept until the manifest is written."""
        self.facts.update(facts)

    # ---- checkpoints -------------------------------------------------------------------------

    def should_checkpoint(self) -> bool:
        """Whether the interval has passed, or the job is about to be stopped and resumed."""
        self._asks = True
        self._asked += 1
        self._is_told = self._stop.wants_checkpoint
        is_due = self._clock.monotonic() - self._checkpoint_at >= self._checkpoint_every_s
        has_done = self._asked >= (self._checkpoint_every_steps or math.inf)
        return is_due or has_done or self._is_told

    def save_checkpoint(self, step: int, file: Path) -> None:
        """Upload it; the one before is kept too."""
        self._checkpoints.save(self._request.token, step, file, folder=self._folder)
        self._checkpoint_at = self._clock.monotonic()
        self._asked = 0

    def load_checkpoint(self) -> Checkpoint | None:
        """The latest one whose bytes are right."""
        return self._checkpoints.load(self._folder / "checkpoint")
