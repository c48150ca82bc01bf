from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.artifacts.directory import DirectoryStore
from overproof.artifacts.shown import shown_files
from overproof.core.clock import ManualClock
from overproof.core.ids import UnitId
from overproof.core.spec import DatasetSpec, JobSpec
from overproof.core.states import StopReason
from overproof.errors import ArtifactMissing, JobCancelled, PermanentError, ShuttingDown
from overproof.runtime.cache import ArtifactCache
from overproof.runtime.context import AttemptContext
from overproof.runtime.reports import Advanced, JobRequest
from overproof.runtime.stopping import StopRequest
from tests.builders import a_network


class Scene:
    def __init__(
        self,
        home: Path,
        *,
        shows_in: DirectoryStore | None = None,
        checkpoint_every_steps: int | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.stop = StopRequest()
        self.store = DirectoryStore(home / "store")
        self.reports: list[Advanced] = []
        job = JobSpec.of((a_network(),))
        self.job_id = job.id
        self.context = AttemptContext(
            JobRequest(job=job, token=1, attempt=1, inputs={}),
            store=self.store,
            shows_in=shows_in or self.store,
            cache=ArtifactCache(home / "cache", limit_bytes=1000),
            folder=home / "attempt",
            device="cpu",
            stop=self.stop,
            report=self.reports.append,
            clock=self.clock,
            checkpoint_every_s=300.0,
            checkpoint_every_steps=checkpoint_every_steps,
            report_every_s=0.5,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# ---- progress --------------------------------------------------------------------------------


def test_progress_is_passed_on_at_intervals_and_at_the_end(scene: Scene) -> None:
    for step in range(1, 101):
        scene.context.progress(step, 100)
        scene.clock.advance(0.1)

    steps = [report.step for report in scene.reports]
    assert steps[0] == 1
    assert steps[-1] == 100
    assert len(steps) < 25


def test_numbers_that_are_not_finite_are_left_out(scene: Scene) -> None:
    scene.context.progress(1, 1, loss=math.nan, rate=0.1, norm=math.inf)

    assert scene.reports[0].scalars == {"rate": 0.1}


def test_cancelled_job_stops_at_once(scene: Scene) -> None:
    scene.context.should_checkpoint()
    scene.stop.set(StopReason.CANCEL)

    with pytest.raises(JobCancelled):
        scene.context.progress(1, 10)


def test_handler_that_never_checkpoints_is_stopped_at_once(scene: Scene) -> None:
    scene.stop.set(StopReason.SHUTDOWN)

    with pytest.raises(ShuttingDown):
        scene.context.progress(1, 10)


def test_stop_between_question_and_progress_waits_for_the_next_checkpoint(scene: Scene) -> None:
    asked_early = scene.context.should_checkpoint()
    scene.stop.set(StopReason.SHUTDOWN)
    scene.context.progress(1, 10)
    asked_again = scene.context.should_checkpoint()

    assert (asked_early, asked_again) == (False, True)
    with pytest.raises(ShuttingDown):
        scene.context.progress(2, 10)


def test_checkpoint_is_due_after_the_interval(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"state")
    scene.clock.advance(299)
    early = scene.context.should_checkpoint()
    scene.clock.advance(1)
    due = scene.context.should_checkpoint()
    scene.context.save_checkpoint(7, file)

    assert (early, due, scene.context.should_checkpoint()) == (False, True, False)


def test_checkpoint_is_due_after_so_many_steps_as_well(tmp_path: Path) -> None:
    scene = Scene(tmp_path, checkpoint_every_steps=3)
    file = tmp_path / "state"
    file.write_bytes(b"state")

    due = []
    for step in range(7):
        due.append(scene.context.should_checkpoint())
        if due[-1]:
            scene.context.save_checkpoint(step, file)

    assert due == [False, False, True, False, False, True, False]


def test_progress_tells_speed_and_time_left(scene: Scene) -> None:
    for step in (10, 11, 12):
        scene.context.progress(step, 20, loss=1.0)
        scene.clock.advance(2)

    assert [report.scalars for report in scene.reports] == [
        {"loss": 1.0},
        {"loss": 1.0, "steps_per_s": 0.5, "seconds_left": 18.0},
        {"loss": 1.0, "steps_per_s": 0.5, "seconds_left": 16.0},
    ]


# ---- what is shown ---------------------------------------------------------------------------


def test_shown_file_can_be_read_while_the_job_runs(scene: Scene, tmp_path: Path) -> None:
    for text in ("step,loss\n", "step,loss\n1,2.0\n"):
        (tmp_path / "losses.csv").write_text(text)
        scene.context.show("losses.csv", tmp_path / "losses.csv")

    found = shown_files(scene.store, scene.job_id)

    assert list(found) == ["losses.csv"]
    assert scene.store.read(found["losses.csv"]) == b"step,loss\n1,2.0\n"


def test_job_goes_on_when_nothing_can_be_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path, shows_in=DirectoryStore(tmp_path / "gone"))
    (tmp_path / "file").write_text("picture")
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").write_text("a file where the folder was")

    scene.context.show("picture", tmp_path / "file")

    assert "picture is not shown" in caplog.text


# ---- inputs ----------------------------------------------------------------------------------


def test_unit_that_is_no_input_is_refused_for_good(scene: Scene) -> None:
    with pytest.raises(PermanentError, match="none of its inputs"):
        scene.context.input(UnitId("trn-" + "0" * 32), "weights")


@pytest.mark.parametrize("version", ["bundled-1", ""])
def test_bundled_data_set_has_no_file(scene: Scene, version: str) -> None:
    assert scene.context.dataset(DatasetSpec(name="digits", version=version)) is None


def test_data_set_is_fetched_by_its_hash(scene: Scene, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(b"images and labels")
    sha256 = scene.store.put("staging", packed, media_type="x").sha256
    scene.store.put(keys.asset("datasets", sha256), packed, media_type="x")

    path = scene.context.dataset(DatasetSpec(name="cifar-10", version=sha256))

    assert path is not None
    assert path.read_bytes() == b"images and labels"


def test_data_set_that_is_not_there_says_how_to_add_it(scene: Scene) -> None:
    with pytest.raises(ArtifactMissing, match="overproof data add cifar-10"):
        scene.context.dataset(DatasetSpec(name="cifar-10", version="0" * 64))
