"""What a worker does in each turn, without any sleeping."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.bus.base import Listener
from overproof.bus.envelope import MessageType
from overproof.bus.memory import MemoryBus
from overproof.bus.topics import Topic
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.results.views import EndKind
from tests.worker.stage import PATIENCE_S, Lost, Stage, undisturbed_bytes
from tests.worker.tasks import a_probe


def heard(listener: Listener) -> list[tuple[MessageType, str]]:
    return [(envelope.type, envelope.job_id) for envelope in listener.poll(0)]


# ---- from ready to done ----------------------------------------------------------------------


def test_job_becomes_succeeded_with_manifest_results_and_events(stage: Stage) -> None:
    unit = a_probe(seed=5)
    experiment = stage.submit(unit)
    events = stage.backends.bus.listen(Topic.EVENTS_JOBS)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert [dict(row.result) for row in stage.repository.units(experiment)] == [
        {"seed": 5, "count": 3}
    ]
    assert len(json.loads(stage.bytes_of(unit))["numbers"]) == 3
    assert stage.manifest_of(unit).facts["device"] == "cpu"
    assert heard(events) == [
        (MessageType.JOB_STARTED, job.job_id),
        (MessageType.JOB_ENDED, job.job_id),
    ]


def test_nothing_is_left_in_work_folder_or_checkpoints(stage: Stage) -> None:
    unit = a_probe(behaviour="checkpoint-always")
    stage.submit(unit)

    stage.work(stage.a_worker())

    assert [path for path in (stage.home / "cache" / "work").iterdir() if path.is_dir()] == []
    assert list(stage.store.keys(keys.checkpoint_folder(stage.job_of(unit).job_id))) == []


def test_chain_of_kinds_is_done_by_one_worker_of_all_kinds(stage: Stage) -> None:
    distill = a_probe(seed=1)
    train = a_probe(seed=2, kind=JobKind.TRAIN, needs=[distill])
    attack = a_probe(seed=3, kind=JobKind.ATTACK, needs=[train])
    stage.submit(distill, train, attack)

    stage.work(stage.a_worker(JobKind.ATTACK, JobKind.TRAIN, JobKind.DISTILL))

    assert stage.job_of(attack).state is JobState.SUCCEEDED
    read = json.loads(stage.bytes_of(attack))["inputs"]
    assert read == {train.id: json.loads(stage.bytes_of(train))}


def test_worker_leaves_other_kinds_alone(stage: Stage) -> None:
    unit = a_probe(kind=JobKind.TRAIN)
    stage.submit(unit)

    stage.work(stage.a_worker(JobKind.DISTILL))

    assert stage.job_of(unit).state is JobState.READY


def test_end_announces_jobs_that_became_ready(stage: Stage) -> None:
    parent = a_probe(seed=1)
    child = a_probe(seed=2, kind=JobKind.TRAIN, needs=[parent])
    stage.submit(parent, child)
    listener = stage.backends.bus.listen(Topic.JOBS_TRAIN)

    stage.work(stage.a_worker(JobKind.DISTILL))

    assert heard(listener) == [(MessageType.JOB_READY, JobSpec.of((child,)).id)]


# ---- finding work ----------------------------------------------------------------------------


def test_announcement_starts_a_job_at_once(stage: Stage) -> None:
    worker = stage.a_worker()
    stage.work(worker)
    unit = a_probe()
    stage.submit(unit, announce=True)

    worker.step(0.0)

    assert stage.job_of(unit).state is JobState.RUNNING


@pytest.mark.parametrize("is_sent", [True, False], ids=["lost on the way", "never sent"])
def test_job_without_announcement_starts_at_the_next_sweep(tmp_path: Path, is_sent: bool) -> None:
    stage = Stage(tmp_path, bus=MemoryBus(drop=lambda topic, envelope: True))
    worker = stage.a_worker()
    stage.work(worker)
    unit = a_probe()
    stage.submit(unit, announce=is_sent)

    worker.step(0.0)
    before = stage.job_of(unit).state
    stage.clock.advance(stage.settings.sweep_s * 1.25)
    worker.step(0.0)

    assert (before, stage.job_of(unit).state) == (JobState.READY, JobState.RUNNING)


def test_bus_that_is_down_delays_nothing_but_the_start(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    stage.backends.bus.close()

    stage.work(stage.a_worker())

    assert stage.job_of(unit).state is JobState.SUCCEEDED


def test_announced_job_goes_first_among_equals(stage: Stage) -> None:
    units = [a_probe(seed=seed) for seed in range(3)]
    worker = stage.a_worker()
    stage.work(worker)
    stage.submit(*units[:2], announce=False)
    stage.clock.advance(0.1)
    stage.submit(units[2], announce=True)

    stage.work(worker)

    assert stage.executor.started[0].job == JobSpec.of((units[2],))


def test_idle_worker_ends_after_its_time(stage: Stage) -> None:
    worker = stage.a_worker(idle_exit_s=300.0)
    stage.work(worker)

    stage.clock.advance(299)
    before = worker.is_finished
    stage.clock.advance(1)

    assert (before, worker.is_finished) == (False, True)


def test_idle_time_counts_from_the_end_of_the_last_job(stage: Stage) -> None:
    worker = stage.a_worker(idle_exit_s=300.0)
    stage.clock.advance(200)
    stage.submit(a_probe())
    stage.work(worker)

    stage.clock.advance(200)

    assert not worker.is_finished


def test_worker_is_listed_with_its_job(stage: Stage) -> None:
    unit = a_probe(steps=50)
    stage.submit(unit)
    worker = stage.a_worker(owner="rosa")
    stage.work_until_started(worker)
    stage.clock.advance(stage.settings.lease_ttl_s / 3)

    worker.step(PATIENCE_S)

    assert [(seen.owner, seen.kind, seen.job_id) for seen in stage.repository.workers(60)] == [
        ("rosa", "distill", stage.job_of(unit).job_id)
    ]


# ---- what was done before --------------------------------------------------------------------


def test_manifest_that_is_there_ends_the_job_without_running_it(stage: Stage) -> None:
    unit = a_probe(behaviour="error")
    experiment = stage.submit(unit)
    stage.put_manifest(unit, token=7, result={"count": 42})

    stage.work(stage.a_worker())

    assert stage.job_of(unit).state is JobState.SUCCEEDED
    assert [dict(row.result) for row in stage.repository.units(experiment)] == [{"count": 42}]
    assert stage.manifest_of(unit).token == 7


def test_unreadable_manifest_is_replaced(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    assert stage.store.put_once(keys.manifest(JobSpec.of((unit,)).id), b"{ half a manif")

    stage.work(stage.a_worker())

    assert stage.job_of(unit).state is JobState.SUCCEEDED
    assert len(stage.bytes_of(unit)) > 0


# ---- renewals --------------------------------------------------------------------------------


def test_lease_is_renewed_with_progress_every_third_of_its_length(stage: Stage) -> None:
    unit = a_probe(steps=30)
    stage.submit(unit)
    worker = stage.a_worker()
    stage.work_until_running(worker, unit, step=2)

    for _ in range(10):
        stage.clock.advance(stage.settings.lease_ttl_s / 3)
        worker.step(PATIENCE_S)

    job = stage.job_of(unit)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    assert job.progress is not None
    assert (job.progress.step, job.progress.total) == (11, 30)
    assert job.progress.scalars["loss"] == 1 / 11
    assert job.progress.scalars["seconds_left"] == pytest.approx(
        19 / job.progress.scalars["steps_per_s"]
    )
    assert stage.repository.claim(JobKind.DISTILL, owner="other", ttl_s=60) is None


def test_cancelled_job_stops_at_the_next_renewal(stage: Stage) -> None:
    unit = a_probe(steps=100)
    experiment = stage.submit(unit)
    worker = stage.a_worker()
    stage.work_until_running(worker, unit, step=2)
    stage.repository.cancel_experiment(experiment)

    stage.clock.advance(stage.settings.lease_ttl_s / 3)
    stage.work(worker)

    job = stage.job_of(unit)
    assert job.state is JobState.CANCELLED
    assert job.progress is not None
    assert job.progress.step < 5
    assert not stage.store.exists(keys.manifest(job.job_id))


def test_database_outage_does_not_stop_a_running_job(stage: Stage) -> None:
    unit = a_probe(steps=20)
    stage.submit(unit)
    worker = stage.a_worker()
    stage.work_until_running(worker, unit)

    stage.repository.is_down = True
    for _ in range(60):
        stage.clock.advance(stage.settings.lease_ttl_s)
        worker.step(PATIENCE_S)
    is_made = stage.store.exists(keys.manifest(stage.job_of(unit).job_id))
    before = stage.job_of(unit).state
    stage.repository.is_down = False
    stage.work(worker)

    assert (is_made, before) == (True, JobState.RUNNING)
    job = stage.job_of(unit)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


def test_database_outage_while_idle_passes(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    worker = stage.a_worker()
    stage.repository.is_down = True
    stage.work(worker)

    stage.repository.is_down = False
    stage.clock.advance(stage.settings.sweep_s * 1.25)
    stage.work(worker)

    assert stage.job_of(unit).state is JobState.SUCCEEDED


def test_shutdown_gives_up_on_a_database_that_stays_down(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    worker = stage.a_worker(stop_grace_s=10.0)
    stage.work_until_started(worker)
    stage.repository.is_down = True
    for _ in range(10):
        worker.step(PATIENCE_S)

    worker.request_stop()
    for _ in range(30):
        worker.step(1.0)

    assert worker.is_finished
    assert stage.job_of(unit).state is JobState.RUNNING  # the next worker finds the manifest


# ---- two at once -----------------------------------------------------------------------------


def test_job_that_was_taken_over_is_stopped_and_changes_nothing(stage: Stage) -> None:
    unit = a_probe(steps=50)
    stage.submit(unit)
    hooks = Lost()
    slow, quick = stage.a_worker(hooks=hooks), stage.a_worker(owner="quick")
    stage.work_until_running(slow, unit)
    stage.clock.advance(stage.settings.lease_ttl_s + 1)
    stage.work(quick)
    manifest = stage.manifest_of(unit)

    stage.work(slow)

    job = stage.job_of(unit)
    assert hooks.lost == 1
    assert (job.state, job.token, job.attempt) == (JobState.SUCCEEDED, 2, 2)
    assert stage.manifest_of(unit) == manifest
    assert [attempt.outcome for attempt in stage.repository.attempts(job.job_id)] == [
        EndKind.RETRY,
        EndKind.SUCCEEDED,
    ]


def test_late_manifest_of_a_lost_attempt_wins_and_both_agree(stage: Stage) -> None:
    unit = a_probe(steps=2)
    experiment = stage.submit(unit)
    late = stage.a_worker()
    stage.work_until_running(late, unit, step=2)
    stage.clock.advance(stage.settings.lease_ttl_s + 1)
    claim = stage.repository.claim(JobKind.DISTILL, owner="second", ttl_s=1.0)
    assert claim is not None
    # The first attempt writes its manifest now, with a token that is stale.
    late.step(PATIENCE_S)
    late.step(PATIENCE_S)
    stage.work(late)
    stage.clock.advance(2)

    stage.work(stage.a_worker(owner="third"))

    assert stage.job_of(unit).state is JobState.SUCCEEDED
    assert stage.repository.units(experiment)[0].result == {"seed": 0, "count": 2}


def test_attempt_whose_manifest_comes_second_leaves_no_files(stage: Stage) -> None:
    unit = a_probe(steps=2)
    stage.submit(unit)
    hooks = Lost()
    late, quick = stage.a_worker(hooks=hooks, renew_s=10_000.0), stage.a_worker(owner="quick")
    stage.work_until_running(late, unit, step=2)
    stage.clock.advance(stage.settings.lease_ttl_s + 1)
    stage.work(quick)
    manifest = stage.manifest_of(unit)

    stage.work(late)

    named = {ref.key for ref in manifest.units[unit.id].files.values()}
    left = set(stage.store.keys(keys.job_folder(manifest.job_id)))
    assert hooks.lost == 1
    assert (manifest.token, stage.manifest_of(unit)) == (2, manifest)
    assert left == named | {keys.manifest(manifest.job_id)}


# ---- stopping --------------------------------------------------------------------------------


def test_shutdown_checkpoints_and_another_worker_goes_on(stage: Stage, tmp_path: Path) -> None:
    unit = a_probe(seed=9, steps=40)
    stage.submit(unit)
    listener = stage.backends.bus.listen(Topic.JOBS_DISTILL)
    first = stage.a_worker()
    stage.work_until_running(first, unit, step=10)

    first.request_stop()
    stage.work(first)
    released = stage.job_of(unit)
    announced = heard(listener)
    stage.work(stage.a_worker())

    assert (released.state, released.attempt) == (JobState.READY, 0)
    assert announced == [(MessageType.JOB_READY, released.job_id)]
    assert stage.job_of(unit).state is JobState.SUCCEEDED
    assert stage.manifest_of(unit).facts["resumed_at"] >= 10
    assert [stage.bytes_of(unit)] == undisturbed_bytes(tmp_path / "undisturbed", [unit])


def test_stopping_worker_claims_no_more(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    worker = stage.a_worker()

    worker.request_stop()
    worker.step(0.0)

    assert worker.is_finished
    assert stage.job_of(unit).state is JobState.READY


def test_job_that_does_not_stop_is_killed_after_the_grace(stage: Stage) -> None:
    unit = a_probe(behaviour="deaf", steps=1000)
    stage.submit(unit)
    worker = stage.a_worker(stop_grace_s=5.0)
    stage.work_until_running(worker, unit)

    worker.request_stop()
    worker.step(PATIENCE_S)
    before = worker.is_finished
    stage.clock.advance(5)
    stage.work(worker)

    assert (before, worker.is_finished) == (False, True)
    assert stage.job_of(unit).state is JobState.READY


def test_time_limit_counts_as_attempt_and_the_next_one_resumes(stage: Stage) -> None:
    unit = a_probe(steps=30)
    stage.submit(unit)
    worker = stage.a_worker(time_limit_s=100.0, lease_ttl_s=1000.0)
    stage.work_until_running(worker, unit, step=5)

    stage.clock.advance(100)
    stage.work(worker)
    failed = stage.repository.attempts(stage.job_of(unit).job_id)[0]
    stage.clock.advance(stage.settings.retry_base_s * 2)
    stage.work(worker)

    assert failed.outcome is EndKind.RETRY
    assert failed.failure is not None
    assert failed.failure.type_name == "TimeLimitExceeded"
    assert stage.job_of(unit).attempt == 2
    assert stage.manifest_of(unit).facts["resumed_at"] >= 5


# ---- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["nan", "nan-result"])
def test_divergence_fails_at_once_and_blocks_dependants(stage: Stage, behaviour: str) -> None:
    parent = a_probe(behaviour=behaviour)
    child = a_probe(kind=JobKind.TRAIN, needs=[parent])
    stage.submit(parent, child)

    stage.work(stage.a_worker())

    job = stage.job_of(parent)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert "NonFiniteLoss" in (job.error or "")
    assert stage.job_of(child).blocked_by == job.job_id


def test_other_errors_are_retried_later_and_later_up_to_the_limit(stage: Stage) -> None:
    unit = a_probe(behaviour="error")
    stage.submit(unit)
    worker = stage.a_worker()
    starts: list[float] = []

    for _ in range(40):
        stage.work(worker)
        if len(stage.executor.started) > len(starts):
            starts.append(stage.clock.monotonic())
        stage.clock.advance(5)

    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) == stage.settings.max_attempts == 3
    assert 30 <= gaps[0] < 45
    assert 120 <= gaps[1] < 135
    assert stage.job_of(unit).state is JobState.FAILED
    assert stage.job_of(unit).error == "RuntimeError: no luck today"


@pytest.mark.parametrize("behaviour", ["forgets", "no-json"])
def test_handler_that_breaks_its_contract_fails_for_good(stage: Stage, behaviour: str) -> None:
    unit = a_probe(behaviour=behaviour)
    stage.submit(unit)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert "correct its handler" in (job.error or "")


def test_worker_goes_on_after_a_failure(stage: Stage) -> None:
    bad, good = a_probe(behaviour="nan"), a_probe()
    stage.submit(bad)
    stage.clock.advance(1)
    stage.submit(good)

    stage.work(stage.a_worker())

    assert stage.job_of(good).state is JobState.SUCCEEDED


def test_job_that_stops_unasked_is_not_handed_back_for_ever(stage: Stage) -> None:
    unit = a_probe(behaviour="stops-unasked")
    stage.submit(unit)
    worker = stage.a_worker()

    for _ in range(10):
        stage.work(worker)
        stage.clock.advance(1000)

    assert stage.job_of(unit).state is JobState.FAILED
    assert len(stage.executor.started) == 3


def test_full_disk_says_what_to_do(stage: Stage) -> None:
    unit = a_probe(behaviour="full-disk")
    stage.submit(unit)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert job.state is JobState.READY
    assert "StoreUnavailable" in (job.error or "")
    assert "free space" in (job.error or "")


def test_out_of_memory_is_tried_again_at_once_with_half_the_batch(stage: Stage) -> None:
    unit = a_probe(behaviour="out-of-memory-once")
    stage.submit(unit)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert stage.manifest_of(unit).facts["batch_scale"] == 0.5


def test_out_of_memory_with_half_the_batch_is_a_failed_attempt(stage: Stage) -> None:
    unit = a_probe(behaviour="out-of-memory")
    stage.submit(unit)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert job.state is JobState.READY
    assert (job.error or "").startswith("OutOfMemory: cpu ran out of memory even with half")


def test_work_that_is_refused_for_its_size_says_what_would_fit(stage: Stage) -> None:
    unit = a_probe(behaviour="too-large")
    stage.submit(unit)

    stage.work(stage.a_worker())

    job = stage.job_of(unit)
    assert job.state is JobState.READY
    assert job.error == "OutOfMemory: the probe takes about 2 GiB; batch 5 would fit"


# ---- unusable inputs -------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["bytes", "file", "manifest", "no manifest"])
def test_unusable_input_is_made_again_by_its_producer(
    stage: Stage, tmp_path: Path, damage: str
) -> None:
    producer = a_probe(seed=1)
    consumer = a_probe(seed=2, kind=JobKind.TRAIN, needs=[producer])
    stage.submit(producer, consumer)
    stage.work(stage.a_worker(JobKind.DISTILL))
    manifest = stage.manifest_of(producer)
    if damage == "bytes":
        stage.damage(producer)
    elif damage == "file":
        stage.store.delete(manifest.units[producer.id].files["numbers"].key)
    else:
        stage.store.delete(keys.manifest(manifest.job_id))
        if damage == "manifest":
            stage.store.put_once(keys.manifest(manifest.job_id), b"garbage")

    worker = stage.a_worker(JobKind.TRAIN, JobKind.DISTILL)
    for _ in range(3):
        stage.work(worker)
        stage.clock.advance(10)

    assert stage.job_of(consumer).state is JobState.SUCCEEDED
    assert stage.manifest_of(producer).token > manifest.token
    assert [stage.bytes_of(producer), stage.bytes_of(consumer)] == undisturbed_bytes(
        tmp_path / "undisturbed", [producer, consumer]
    )


def test_input_that_was_made_anew_meanwhile_is_left_alone(stage: Stage) -> None:
    producer = a_probe(seed=1)
    consumer = a_probe(seed=2, kind=JobKind.TRAIN, needs=[producer])
    stage.submit(producer, consumer)
    stage.work(stage.a_worker(JobKind.DISTILL))
    stage.damage(producer)
    worker = stage.a_worker(JobKind.TRAIN)
    stage.work_until_started(worker)
    # The reader finds the damage; before it says so, the producer's job has been made again.
    worker.step(PATIENCE_S)
    job_id = stage.job_of(producer).job_id
    stage.store.delete(keys.manifest(job_id))
    anew = stage.put_manifest(producer, token=99)

    stage.work(worker)

    assert stage.manifest_of(producer) == anew
    assert stage.job_of(producer).state is JobState.SUCCEEDED
