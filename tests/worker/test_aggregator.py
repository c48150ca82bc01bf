"""What the aggregator does with messages, groups with news, and what crashes left behind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from overproof.artifacts import keys
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.topics import Group, Topic
from overproof.core.ids import GroupId, group_id_of
from overproof.core.spec import Unit
from overproof.core.states import JobKind, JobState
from overproof.errors import DatabaseUnavailable
from overproof.results.views import MetricRow, MetricScope, UnitRow
from overproof.runtime.aggregation import Aggregator
from tests.worker.stage import Stage
from tests.worker.tasks import a_probe

UNKNOWN = "job-" + "0" * 32


def grouped(unit: Unit, name: str) -> tuple[Unit, GroupId]:
    group = group_id_of({"name": name})
    return unit.model_copy(update={"group": group}), group


def count_units(group: Mapping[str, Any], rows: Sequence[UnitRow]) -> list[MetricRow]:
    """A stand-in for the real metrics: how many units of the group are done."""
    if group["name"] == "corrupt":
        raise KeyError("clean_correct")
    done = [row for row in rows if row.result]
    return [
        MetricRow(
            scope=MetricScope.DISTILLED_SET,
            subject=group_id_of(group),
            metric="done",
            slice="",
            value=float(len(done)),
            unit="units",
            present=len(done),
            expected=len(rows),
        )
    ]


def an_aggregator(stage: Stage) -> Aggregator:
    return Aggregator(stage.backends, count_units, settings=stage.settings, clock=stage.clock)


def value_of(stage: Stage, group: GroupId) -> float | None:
    rows = stage.repository.metrics([group])
    return rows[0].value if rows else None


# ---- numbers ---------------------------------------------------------------------------------


def test_end_of_a_job_updates_its_group_at_once(stage: Stage) -> None:
    unit, group = grouped(a_probe(), "a")
    aggregator = an_aggregator(stage)
    aggregator.step()
    stage.submit(unit, name="a", group=group)
    stage.work(stage.a_worker())

    aggregator.step()

    assert value_of(stage, group) == 1


def test_lost_event_is_made_up_for_by_the_sweep(stage: Stage) -> None:
    unit, group = grouped(a_probe(), "a")
    aggregator = an_aggregator(stage)
    aggregator.step()
    stage.backends.bus.close()
    stage.submit(unit, name="a", group=group, announce=False)
    stage.work(stage.a_worker())

    aggregator.step()
    before = value_of(stage, group)
    stage.clock.advance(stage.settings.aggregate_s)
    aggregator.step()

    assert (before, value_of(stage, group)) == (None, 1)


def test_group_that_cannot_be_computed_does_not_hold_up_others(stage: Stage) -> None:
    groups: list[GroupId] = []
    for name in ("a", "corrupt", "z"):
        unit, group = grouped(a_probe(seed=len(groups)), name)
        stage.submit(unit, name=name, group=group)
        groups.append(group)
    stage.work(stage.a_worker())

    an_aggregator(stage).step()

    assert [value_of(stage, group) for group in groups] == [1, None, 1]


def test_failed_group_is_tried_again_later_not_in_a_loop(stage: Stage) -> None:
    unit, group = grouped(a_probe(), "corrupt")
    stage.submit(unit, name="corrupt", group=group)
    stage.work(stage.a_worker())
    calls = []

    def fail(body: Mapping[str, Any], rows: Sequence[UnitRow]) -> list[MetricRow]:
        calls.append(body)
        raise ValueError("still corrupt")

    aggregator = Aggregator(stage.backends, fail, settings=stage.settings, clock=stage.clock)
    for _ in range(29):
        aggregator.step()
        stage.clock.advance(stage.settings.aggregate_s)
    before = len(calls)
    stage.clock.advance(20)
    aggregator.step()

    assert (before, len(calls)) == (1, 2)


# ---- dead letters ----------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [Topic.EVENTS_JOBS, Topic.JOBS_TRAIN])
def test_malformed_message_becomes_a_dead_letter(stage: Stage, topic: Topic) -> None:
    raw = b"\x00 no envelope"
    aggregator = an_aggregator(stage)
    dead = stage.backends.bus.subscribe(topic.dead, group=Group.BENCHMARKER)
    stage.backends.bus.publish_raw(topic, raw)

    aggregator.step()

    (letter,) = stage.repository.dead_letters()
    assert (letter.topic, letter.reason, letter.job_id) == (topic.value, "malformed", None)
    assert letter.sha256 == hashlib.sha256(raw).hexdigest()
    assert stage.store.read(keys.dead_letter(letter.sha256)) == raw
    assert [delivery.raw for delivery in dead.poll(0)] == [raw]


@pytest.mark.parametrize("job_id", [UNKNOWN, "", "../../etc/passwd"])
def test_message_about_an_unknown_job_becomes_a_dead_letter(stage: Stage, job_id: str) -> None:
    aggregator = an_aggregator(stage)
    envelope = Envelope.new(
        MessageType.JOB_READY, now=stage.clock.now(), job_id=job_id, kind=JobKind.TRAIN
    )
    stage.backends.bus.publish(Topic.JOBS_TRAIN, envelope)

    aggregator.step()

    (letter,) = stage.repository.dead_letters()
    assert (letter.reason, letter.job_id) == ("unknown-job", job_id or None)


def test_failed_job_becomes_one_dead_letter_however_often_it_is_told(stage: Stage) -> None:
    unit = a_probe(behaviour="nan")
    aggregator = an_aggregator(stage)
    stage.submit(unit)
    stage.work(stage.a_worker())
    aggregator.step()
    job = stage.job_of(unit)
    again = Envelope.new(MessageType.JOB_ENDED, now=0, job_id=job.job_id, kind=job.kind)
    stage.backends.bus.publish(Topic.EVENTS_JOBS, again)

    aggregator.step()

    (letter,) = stage.repository.dead_letters()
    assert (letter.topic, letter.reason, letter.job_id) == (
        Topic.JOBS_DISTILL.value,
        "NonFiniteLoss",
        job.job_id,
    )
    assert "the loss is NaN at step 0" in letter.report
    raw = stage.store.read(keys.dead_letter(letter.sha256))
    assert raw is not None
    assert Envelope.decode(raw).job_id == job.job_id


def test_failure_is_buried_though_its_worker_died_before_it_could_tell(stage: Stage) -> None:
    aggregator = an_aggregator(stage)
    stage.submit(a_probe(behaviour="nan"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.backends.bus, "publish", lambda *_args, **_kwargs: None)
        stage.work(stage.a_worker())
    assert stage.repository.dead_letters() == []

    stage.clock.advance(stage.settings.aggregate_s)
    aggregator.step()

    (letter,) = stage.repository.dead_letters()
    assert letter.reason == "NonFiniteLoss"
    # Dropped means that somebody dealt with it: it does not come back by itself.
    stage.repository.drop_dead_letter(letter.dead_letter_id)
    stage.clock.advance(stage.settings.aggregate_s)
    aggregator.step()
    assert stage.repository.dead_letters() == []


def test_good_messages_leave_no_dead_letters(stage: Stage) -> None:
    aggregator = an_aggregator(stage)
    stage.submit(a_probe())
    stage.work(stage.a_worker())

    aggregator.step()

    assert stage.repository.dead_letters() == []


def test_messages_wait_for_a_database_that_is_down(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = an_aggregator(stage)
    aggregator.step()
    stage.backends.bus.publish_raw(Topic.EVENTS_JOBS, b"garbage")

    def down(**_: Any) -> int:
        raise DatabaseUnavailable("the database is down")

    with monkeypatch.context() as patch:
        patch.setattr(stage.repository, "add_dead_letter", down)
        aggregator.step()
        before = stage.repository.dead_letters()
    aggregator.step()

    assert (len(before), len(stage.repository.dead_letters())) == (0, 1)


def test_messages_come_again_to_the_next_aggregator_if_this_one_dies(stage: Stage) -> None:
    first = stage.backends.bus.subscribe(Topic.EVENTS_JOBS, group=Group.AGGREGATOR)
    stage.backends.bus.publish_raw(Topic.EVENTS_JOBS, b"garbage")
    assert len(first.poll(0)) == 1
    first.close()  # without a commit

    an_aggregator(stage).step()

    assert len(stage.repository.dead_letters()) == 1


# ---- healing ---------------------------------------------------------------------------------


def test_job_whose_workers_all_died_fails_and_is_buried(stage: Stage) -> None:
    unit = a_probe()
    stage.submit(unit)
    aggregator = an_aggregator(stage)
    for _ in range(stage.settings.max_attempts):
        assert stage.repository.claim(JobKind.DISTILL, owner="mayfly", ttl_s=60) is not None
        stage.clock.advance(61)

    aggregator.step()

    job = stage.job_of(unit)
    assert job.state is JobState.FAILED
    assert "WorkerLost" in (job.error or "")
    assert [letter.reason for letter in stage.repository.dead_letters()] == ["WorkerLost"]


def test_sweeping_twice_changes_nothing_more(stage: Stage, tmp_path: Path) -> None:
    stage.submit(a_probe(behaviour="nan"), a_probe())
    stage.work(stage.a_worker())
    aggregator = an_aggregator(stage)
    aggregator.step()
    before = (stage.repository.jobs(), stage.repository.dead_letters())

    stage.clock.advance(stage.settings.aggregate_s)
    aggregator.step()

    assert (stage.repository.jobs(), stage.repository.dead_letters()) == before
