"""Checkpoints of a job in the store: a file, and an index that says what its bytes must be."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from overproof.artifacts import keys
from overproof.artifacts.base import ArtifactStore
from overproof.core.refs import ArtifactRef
from overproof.errors import ArtifactCorrupt, ArtifactMissing
from overproof.runtime.handler import Checkpoint

_log = logging.getLogger(__name__)

_INDEX = ".json"
# One older checkpoint is kept, in case the newest turns out to be unreadable.
_KEPT = 2


class Checkpoints:
    """The checkpoints of one job, of all its attempts.

    A checkpoint is there once its index is: the file is written first and removed last, so a
    process that dies in between leaves garbage, never a broken checkpoint.
    """

    def __init__(self, store: ArtifactStore, job_id: str) -> None:
        self._store = store
        self._job_id = job_id

    def save(self, token: int, step: int, file: Path, *, folder: Path) -> None:
        """Store `file` and its index (written in `folder` first); older ones are removed."""
        key = keys.checkpoint(self._job_id, token, step)
        ref = self._store.put(key, file, media_type="application/octet-stream")
        index = folder / "checkpoint.json"
        index.write_text(ref.model_dump_json())
        self._store.put(key + _INDEX, index, media_type="application/json")
        # Only what sorts before this one: an attempt that lost its claim removes nothing newer.
        older = [each for each in self._keys() if each < key]
        for each in older[: max(0, len(older) - _KEPT + 1)]:
            self._remove(each)

    def load(self, into: Path) -> Checkpoint | None:
        """The latest one whose bytes have the hash in its index, written to the path `into`."""
        for key in reversed(self._keys()):
            raw = self._store.read(key + _INDEX)
            if raw is None:
                continue
            try:
                path = self._store.fetch(ArtifactRef.model_validate_json(raw), into)
            except (ValidationError, ArtifactMissing, ArtifactCorrupt) as error:
                _log.warning("checkpoint %s skipped: %s", key, error)
                continue
            return Checkpoint(step=int(key.rpartition("-")[2]), path=path)
        return None

    def _keys(self) -> list[str]:
        """All, oldest first, those included that were cut short."""
        found = self._store.keys(keys.checkpoint_folder(self._job_id))
        return sorted({key.removesuffix(_INDEX) for key in found})

    def _remove(self, key: str) -> None:
        self._store.delete(key + _INDEX)
        self._store.delete(key)
