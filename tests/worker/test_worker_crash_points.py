"""A worker may die between any two steps: whoever comes next brings about the same end."""

from __future__ import annotations

import multiprocessing
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from overproof.artifacts import keys
from overproof.core.spec import Unit
from overproof.core.states import JobKind, JobState
from overproof.results.views import Claim
from overproof.runtime.hooks import Hooks, Moment
from tests.worker.crashing import dying_at, dying_before_change, work_and_die
from tests.worker.stage import PATIENCE_S, Stage, undisturbed_bytes
from tests.worker.tasks import a_probe

PARENT = a_probe(behaviour="checkpoint-always", seed=4, steps=3)
CHILD = a_probe(seed=5, kind=JobKind.TRAIN, needs=[PARENT])

# Three checkpoints of two files each, of which the first is removed again; then the unit's file,
# the manifest, and the removal of the two checkpoints that are left.
CHANGES = 3 * 2 + 2 + 1 + 1 + 4


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    from tests.worker.tasks import register

    register()
    return undisturbed_bytes(tmp_path_factory.mktemp("undisturbed"), [PARENT, CHILD])


def assert_same_end(stage: Stage, expected: list[bytes]) -> None:
    """Let the lease run out, let a healthy worker do what is left, and compare."""
    stage.clock.advance(10 * stage.settings.lease_ttl_s)
    stage.repository.sweep()
    worker = stage.a_worker(JobKind.TRAIN, JobKind.DISTILL)
    stage.work(worker)

    units: list[Unit] = [PARENT, CHILD]
    assert [stage.job_of(unit).state for unit in units] == [JobState.SUCCEEDED] * 2
    assert [stage.bytes_of(unit) for unit in units] == expected
    for unit in units:
        manifest = stage.manifest_of(unit)
        named = {ref.key for ref in manifest.units[unit.id].files.values()}
        left = set(stage.store.keys(keys.job_folder(manifest.job_id)))
        assert left == named | {keys.manifest(manifest.job_id)}
    assert stage.job_of(PARENT).attempt <= 2


class Crash(BaseException):
    """Nothing catches it, as nothing catches a power cut."""


class RaisingHooks(Hooks):
    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def before(self, moment: Moment, claim: Claim) -> None:
        if moment is self._moment:
            raise Crash


MOMENTS = [moment for moment in Moment if moment is not Moment.QUARANTINE]


@pytest.mark.parametrize("moment", MOMENTS)
def test_worker_that_stops_dead_before_a_step(
    stage: Stage, moment: Moment, expected: list[bytes]
) -> None:
    stage.submit(PARENT, CHILD)
    worker = stage.a_worker(hooks=RaisingHooks(moment))

    with pytest.raises(Crash):
        stage.work(worker)

    assert_same_end(stage, expected)


def test_worker_that_stops_dead_before_quarantine(stage: Stage, expected: list[bytes]) -> None:
    stage.submit(PARENT, CHILD)
    stage.work(stage.a_worker(JobKind.DISTILL))
    stage.damage(PARENT)
    worker = stage.a_worker(JobKind.TRAIN, hooks=RaisingHooks(Moment.QUARANTINE))
    with pytest.raises(Crash):
        stage.work(worker)

    stage.clock.advance(10 * stage.settings.lease_ttl_s)
    healthy = stage.a_worker(JobKind.TRAIN, JobKind.DISTILL)
    for _ in range(3):
        stage.work(healthy)
        stage.clock.advance(10)

    assert [stage.bytes_of(unit) for unit in (PARENT, CHILD)] == expected


def killed(home: Path, make: Any) -> int | None:
    """Run a worker in a fresh process until it is killed; its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.worker.crashing"])
    process = context.Process(target=work_and_die, args=(home, make))
    process.start()
    process.join(3 * PATIENCE_S)
    return process.exitcode


@pytest.mark.parametrize("moment", MOMENTS)
def test_process_killed_before_a_step(stage: Stage, moment: Moment, expected: list[bytes]) -> None:
    stage.submit(PARENT, CHILD)

    assert killed(stage.home, partial(dying_at, moment)) == -signal.SIGKILL

    assert_same_end(stage, expected)


@pytest.mark.parametrize("change", range(CHANGES))
def test_process_killed_before_a_change_of_the_store(
    stage: Stage, change: int, expected: list[bytes]
) -> None:
    stage.submit(PARENT, CHILD)

    assert killed(stage.home, partial(dying_before_change, change)) == -signal.SIGKILL

    assert_same_end(stage, expected)


def test_there_are_no_more_changes_than_are_tested(stage: Stage) -> None:
    stage.submit(PARENT, CHILD)

    assert killed(stage.home, partial(dying_before_change, CHANGES)) == 0
