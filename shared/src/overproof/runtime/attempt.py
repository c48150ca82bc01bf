"""One attempt at a job, from request to manifest: the same code in a child and in a thread."""

from __future__ import annotations

import errno
import gc
import logging
import platform
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.manifest import Manifest, UnitManifest
from overproof.artifacts.transfer import media_type_of
from overproof.catalog.tasks import TASKS
from overproof.core.canonical import canonical_json
from overproof.core.clock import Clock
from overproof.core.failure import FailureReport
from overproof.core.ids import UnitId
from overproof.core.refs import ArtifactRef
from overproof.errors import (
    InvalidData,
    MalformedArtifact,
    NonFiniteLoss,
    OutOfMemory,
    StopSignal,
    StoreUnavailable,
)
from overproof.runtime.cache import ArtifactCache
from overproof.runtime.context import AttemptContext
from overproof.runtime.handler import UnitOutput
from overproof.runtime.patience import PatientStore
from overproof.runtime.reports import Advanced, Done, Failed, JobRequest, UnusableInput
from overproof.runtime.settings import ChildSettings
from overproof.runtime.stopping import StopRequest
from overproof.runtime.workdir import attempt_folder

_log = logging.getLogger(__name__)

_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class AttemptRunner:
    """Runs attempts one after another, each from a clean slate.

    Args:
        store: as it is; the runner adds the patience.
        settings: folders, device, limits.
        clock: for intervals.
        report_every_s: how often a job's progress is passed on at most.
    """

    def __init__(
        self,
        store: ArtifactStore,
        settings: ChildSettings,
        *,
        clock: Clock,
        report_every_s: float = 0.5,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.report_every_s = report_every_s
        self.cache = ArtifactCache(
            settings.cache_dir / "files", limit_bytes=settings.cache_bytes, clock=clock
        )

    def run(
        self, request: JobRequest, *, stop: StopRequest, report: Callable[[Advanced], None]
    ) -> Done | Failed:
        """Make all units of the job and commit them by a manifest; never raises.

        If the process dies before the manifest, its files are garbage and another attempt resumes
        from the checkpoint; if it dies after, the next attempt finds the manifest and is done.
        """
        store = PatientStore(
            self.store, stop=stop, clock=self.clock, patience_s=self.settings.store_patience_s
        )
        attempt = _Attempt(self, request, store, stop, report)
        try:
            manifest = attempt.run()
        except Exception as error:
            known = _as_known(error)
            if not isinstance(known, StopSignal):
                _log.warning("attempt failed", exc_info=known)
            return Failed(
                failure=FailureReport.of(known),
                unusable=attempt.unusable,
                facts=attempt.facts,
                reusable=_leaves_process_sound(known) and self._is_small(),
            )
        return Done(
            results={UnitId(unit): made.result for unit, made in manifest.units.items()},
            facts=manifest.facts,
            reusable=stop.reason is None and self._is_small(),
        )

    def _is_small(self) -> bool:
        used: int = psutil.Process().memory_info().rss
        return used <= self.settings.memory_limit_bytes


class _Attempt:
    def __init__(
        self,
        runner: AttemptRunner,
        request: JobRequest,
        store: PatientStore,
        stop: StopRequest,
        report: Callable[[Advanced], None],
    ) -> None:
        self._runner = runner
        self._request = request
        self._store = store
        self._stop = stop
        self._report = report
        self._context: AttemptContext | None = None
        self.facts: dict[str, Any] = {}

    @property
    def unusable(self) -> UnusableInput | None:
        return self._context.unusable if self._context else None

    def run(self) -> Manifest:
        """The manifest that the job has now, whoever wrote it."""
        manifest = self._find_manifest() or self._make_manifest()
        self._remove_garbage(manifest)
        return manifest

    def _make_manifest(self) -> Manifest:
        job, settings = self._request.job, self._runner.settings
        with attempt_folder(
            settings.cache_dir / "work", f"{job.id}-{self._request.token}"
        ) as folder:
            device = chosen_device(settings.device)
            self.facts = {**environment_facts(), "device": device, "threads": settings.threads}
            outputs = self._compute(folder, device)
            return self._commit(self._upload(outputs))

    def _find_manifest(self) -> Manifest | None:
        job_id = self._request.job.id
        raw = self._store.read(keys.manifest(job_id))
        if raw is None:
            return None
        try:
            manifest = Manifest.decode(raw)
            if set(manifest.units) == {unit.id for unit in self._request.job.units}:
                return manifest
            reason = "it lacks units of the job"
        except MalformedArtifact as error:
            reason = str(error)
        _log.warning("manifest of %s removed, the job runs again: %s", job_id, reason)
        self._store.delete(keys.manifest(job_id))
        return None

    def _compute(self, folder: Path, device: str) -> Mapping[UnitId, UnitOutput]:
        """Run the handler; when memory runs out, once more in place with half the batch."""
        for name, batch_scale in (("full", 1.0), ("half", 0.5)):
            try:
                return self._handle(folder / name, device, batch_scale)
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                if isinstance(error, OutOfMemory) and batch_scale < 1.0:
                    raise  # refused before it began, with what would fit
                if batch_scale < 1.0:
                    raise OutOfMemory(
                        f"{device} ran out of memory even with half the batch: {_first_line(error)}"
                        "; use a smaller network or batch, or a larger device"
                    ) from error
                _log.warning("out of memory, trying again with half the batch: %s", error)
            # The next turn begins when the traceback, which holds the tensors, is gone.
        raise AssertionError("unreachable")

    def _handle(self, folder: Path, device: str, batch_scale: float) -> Mapping[UnitId, UnitOutput]:
        self._context = AttemptContext(
            self._request,
            store=self._store,
            shows_in=self._runner.store,
            cache=self._runner.cache,
            folder=folder,
            device=device,
            stop=self._stop,
            report=self._report,
            clock=self._runner.clock,
            checkpoint_every_s=self._runner.settings.checkpoint_every_s,
            checkpoint_every_steps=self._runner.settings.checkpoint_every_steps,
            report_every_s=self._runner.report_every_s,
            batch_scale=batch_scale,
        )
        handler = TASKS.load(self._request.job.task)()
        clean_slate()
        outputs: Mapping[UnitId, UnitOutput] = handler.run(self._request.job, self._context)
        if batch_scale < 1.0:
            self._context.note(batch_scale=batch_scale)
        self.facts |= self._context.facts
        return outputs

    def _upload(self, outputs: Mapping[UnitId, UnitOutput]) -> Manifest:
        """Store all files; the manifest that names them is not yet stored."""
        job, token = self._request.job, self._request.token
        expected = {unit.id for unit in job.units}
        if set(outputs) != expected:
            raise InvalidData(
                f"task {job.task} made {len(outputs)} units that are not the {len(expected)} of "
                f"job {job.id}; correct its handler"
            )
        units = {
            unit_id: UnitManifest(
                result=_checked_result(unit_id, output.result),
                files={
                    name: self._upload_file(f"{unit_id}.{name}", path)
                    for name, path in sorted(output.files.items())
                },
            )
            for unit_id, output in sorted(outputs.items())
        }
        return Manifest(job_id=job.id, token=token, units=units, facts=self.facts)

    def _upload_file(self, name: str, path: Path) -> ArtifactRef:
        self._stop_if_unwanted()
        key = keys.attempt_file(self._request.job.id, self._request.token, name)
        return self._store.put(key, path, media_type=media_type_of(path))

    def _commit(self, manifest: Manifest) -> Manifest:
        """Store the manifest; if another attempt was faster, its manifest is the job's."""
        key = keys.manifest(manifest.job_id)
        while not self._store.put_once(key, manifest.encode()):
            # None when a reader has just removed it as corrupt: then it is ours to write.
            winner = self._find_manifest()
            if winner is not None:
                if winner != manifest:
                    self._remove_files(manifest)
                return winner
            self._stop_if_unwanted()
        return manifest

    def _remove_garbage(self, manifest: Manifest) -> None:
        """Remove checkpoints and what earlier attempts left; later ones may still be at work."""
        folder = keys.job_folder(manifest.job_id)
        store = self._runner.store  # without patience: nothing depends on this
        with suppress(StoreUnavailable):
            for key in store.keys(folder):
                owner = key.removeprefix(folder).partition("/")[0]
                if owner == "checkpoint" or (owner.isdecimal() and int(owner) < manifest.token):
                    store.delete(key)

    def _remove_files(self, manifest: Manifest) -> None:
        for unit in manifest.units.values():
            for ref in unit.files.values():
                self._store.delete(ref.key)

    def _stop_if_unwanted(self) -> None:
        # Finished work is worth its upload when the worker shuts down, not when it is unwanted.
        if not self._stop.wants_checkpoint:
            self._stop.raise_if_set()


def clean_slate() -> None:
    """Undo what an earlier job may have left in the process, so that equal jobs stay equal.

    Libraries are reset only if they are imported; `Settings.preload` does that at start.
    """
    gc.collect()
    random.seed(0)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(0)
    if torch is None:
        return
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        # Otherwise the ninth network runs eagerly in silence: the limit of recompilations is 8.
        dynamo.reset()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def chosen_device(setting: str) -> str:
    """The device that `auto` stands for on this machine; any other setting as it is."""
    if setting != "auto":
        return setting
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


@cache
def environment_facts() -> Mapping[str, str]:
    """Versions and platform, for manifests; they do not change while the process lives."""
    facts: dict[str, str] = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("overproof", "torch"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _checked_result(unit_id: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        canonical_json(dict(result))
    except ValueError:
        raise NonFiniteLoss(
            f"the result of unit {unit_id} holds NaN or infinity; its training diverged"
        ) from None
    except TypeError as error:
        raise InvalidData(
            f"the result of unit {unit_id} is not JSON: {error}; correct its handler"
        ) from None
    return result


def _is_out_of_memory(error: BaseException) -> bool:
    # By name and text: torch may not be installed here, and its CPU allocator raises RuntimeError.
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in _NO_MEMORY
    )


def _leaves_process_sound(error: BaseException) -> bool:
    """Whether another job may run in this process: not after a stop, nor after a CUDA error."""
    if isinstance(error, StopSignal | OutOfMemory | MemoryError):
        return False
    return "CUDA" not in str(error) and type(error).__name__ != "AcceleratorError"


def _as_known(error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        full = StoreUnavailable(
            f"the disk of the work folder is full: {error}; free space or move OVERPROOF_CACHE_DIR"
        )
        full.__cause__ = error
        return full
    return error


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
