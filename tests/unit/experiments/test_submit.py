from __future__ import annotations

from pathlib import Path

import pytest

from overproof.bus.announcing import announce_ready
from overproof.bus.base import Bus
from overproof.bus.envelope import Envelope, MessageType
from overproof.bus.memory import MemoryBus
from overproof.bus.topics import Topic
from overproof.core.clock import ManualClock
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.errors import BusUnavailable
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.results.repository import ResultsRepository
from tests.builders import a_network, an_experiment, no_added_datasets


class DeafBus(MemoryBus):
    """A bus that is down."""

    def publish(self, topic: Topic, envelope: Envelope) -> None:
        raise BusUnavailable("no broker")


def submitted_with(bus: Bus, repository: ResultsRepository) -> tuple[JobSpec, ...]:
    experiment = plan(an_experiment(), no_added_datasets)
    return submit(experiment, repository=repository, bus=bus, clock=ManualClock()).ready


def test_roots_are_announced_whole_on_the_topic_of_their_kind(
    repository: ResultsRepository,
) -> None:
    bus = MemoryBus()
    listener = bus.listen(Topic.jobs(JobKind.DISTILL))

    ready = submitted_with(bus, repository)

    heard = listener.poll(0)
    assert {envelope.type for envelope in heard} == {MessageType.JOB_READY}
    assert [JobSpec.model_validate(envelope.payload["job"]) for envelope in heard] == list(ready)
    assert len(ready) == 4


def test_a_bus_that_is_down_loses_nothing(repository: ResultsRepository) -> None:
    ready = submitted_with(DeafBus(), repository)

    states = {repository.job(job.job_id).state for job in ready}
    assert states == {JobState.READY}


def test_announcing_stops_at_the_first_failure() -> None:
    assert announce_ready(DeafBus(), [JobSpec.of((a_network(),))] * 3, ManualClock()) == 0


def test_same_spec_twice_makes_no_second_job(repository: ResultsRepository) -> None:
    submitted_with(MemoryBus(), repository)
    again = plan(an_experiment(), no_added_datasets)

    second = submit(again, repository=repository, bus=MemoryBus(), clock=ManualClock())

    assert second.created == 0
    assert second.linked == 12
    assert len(repository.jobs(limit=100)) == 12


@pytest.fixture
def repository(tmp_path: Path) -> ResultsRepository:
    from overproof.results.engine import create_engine
    from overproof.results.migrate import migrate

    engine = create_engine(f"sqlite:///{tmp_path}/results.db")
    migrate(engine)
    return ResultsRepository(engine)
