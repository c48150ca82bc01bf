"""A worker in a process of its own that is killed at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from overproof.artifacts.directory import DirectoryStore
from overproof.core.refs import ArtifactRef
from overproof.results.views import Claim
from overproof.runtime.hooks import Hooks, Moment
from tests.worker.stage import PATIENCE_S, Stage
from tests.worker.tasks import register


def die() -> None:
    """As if the machine lost its power: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillingHooks(Hooks):
    """Dies before one step of the parent's."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def before(self, moment: Moment, claim: Claim) -> None:
        if moment is self._moment:
            die()


class KillingStore(DirectoryStore):
    """Dies before the change number `left` (from 0) of the job's files."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self._left = left

    def put(self, key: str, source: Path, *, media_type: str) -> ArtifactRef:
        self._count()
        return super().put(key, source, media_type=media_type)

    def put_once(self, key: str, data: bytes) -> bool:
        self._count()
        return super().put_once(key, data)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)

    def _count(self) -> None:
        if self._left == 0:
            die()
        self._left -= 1


def work_and_die(home: Path, make: Callable[[Path], tuple[Stage, Hooks | None]]) -> None:
    """Work on what is in `home` until killed, or until there is nothing left to do."""
    register()
    stage, hooks = make(home)
    worker = stage.a_worker(hooks=hooks)
    while True:
        worker.step(0.0 if worker.is_idle else PATIENCE_S)
        if worker.is_idle:
            return


def dying_at(moment: Moment, home: Path) -> tuple[Stage, Hooks | None]:
    return Stage(home), KillingHooks(moment)


def dying_before_change(number: int, home: Path) -> tuple[Stage, Hooks | None]:
    return Stage(home, store=KillingStore(home / "artifacts", number)), None
