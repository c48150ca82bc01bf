"""Submitting, cancelling, healing and reading, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from overproof.core.clock import ManualClock
from overproof.core.ids import ExperimentId, GroupId, JobId, UnitId, group_id_of
from overproof.core.refs import ArtifactRef
from overproof.core.spec import JobSpec, Unit
from overproof.core.states import JobKind, JobState, UnitState
from overproof.errors import NotFound
from overproof.results.engine import Database, Transaction, create_engine
from overproof.results.migrate import newest_revision
from overproof.results.registers import REPORT_LIMIT_BYTES
from overproof.results.repository import ResultsRepository
from overproof.results.submission import create_experiment
from overproof.results.views import (
    Ended,
    EndKind,
    MetricRow,
    MetricScope,
    Outcome,
    Submitted,
    UnitRow,
)
from tests.builders import an_experiment
from tests.jobs import (
    GROUP,
    GROUP_BODY,
    TTL_S,
    a_cell_on,
    a_network_on,
    a_set,
    by_kind,
    claim,
    failed,
    one_each,
    retry_in,
    submit,
    success,
)

NOBODY = ExperimentId("exp-none")
NO_JOB = JobId("job-" + "0" * 32)


def job_of(*units: Unit) -> JobId:
    return JobSpec.of(units).job_id


def make(repository: ResultsRepository, kind: JobKind = JobKind.DISTILL, **result: Any) -> JobId:
    """Claim the next job and end it well."""
    held = claim(repository, kind)
    assert repository.end(held, success(held, **result)).accepted
    return held.job_id


# ---- submitting ------------------------------------------------------------------------------


def test_roots_are_ready_and_dependants_wait(repository: ResultsRepository) -> None:
    source = a_set(1)
    network = a_network_on(source)

    submitted = submit(repository, [network, source])

    assert submitted.ready == (JobSpec.of((source,)),)
    assert (submitted.created, submitted.linked, submitted.done_units) == (2, 0, 0)
    assert repository.job(job_of(network)).state is JobState.WAITING


def test_units_that_exist_are_linked_with_their_carrier(repository: ResultsRepository) -> None:
    shared, new = a_set(1), a_set(2)
    submit(repository, [shared])
    make(repository)

    second = submit(repository, [shared, new])

    assert (second.created, second.linked, second.done_units) == (1, 1, 1)
    assert second.ready == (JobSpec.of((new,)),)


@pytest.mark.parametrize("turned", [False, True], ids=["small-first", "large-first"])
def test_overlapping_experiments_give_each_unit_one_carrier_in_either_order(
    repository: ResultsRepository, turned: bool
) -> None:
    asked = [[a_set(1), a_set(2)], [a_set(number) for number in range(4)]]

    first, second = (
        submit(repository, units, batch=by_kind) for units in (reversed(asked) if turned else asked)
    )

    carried = [unit.id for job in (*first.ready, *second.ready) for unit in job.units]
    assert sorted(carried) == [unit.id for unit in asked[1]]


def test_overlapping_experiments_submitted_at_once_give_each_unit_one_carrier(
    live: ResultsRepository,
) -> None:
    units = [a_set(number) for number in range(60)]
    start = threading.Barrier(4)

    def submit_slice(first: int) -> Submitted:
        asked = units[first : first + 30]
        start.wait()
        return submit(live, asked if first % 20 else asked[::-1], batch=by_kind)

    with ThreadPoolExecutor(4) as pool:
        submitted = list(pool.map(submit_slice, [0, 10, 20, 30]))

    carried = [unit.id for each in submitted for job in each.ready for unit in job.units]
    assert sorted(carried) == [unit.id for unit in units]
    for job_id in {live.carrier(UnitId(unit.id)) for unit in units}:
        assert live.job(job_id).state is JobState.READY


def test_parent_that_ends_while_its_child_is_being_submitted_unlocks_it(
    results_url: str, live: ResultsRepository
) -> None:
    source = a_set(1)
    child = a_network_on(source)
    submit(live, [source])
    held = claim(live)
    database = Database(create_engine(results_url))
    with ThreadPoolExecutor(1) as pool:

        def submit_slowly(tx: Transaction) -> Future[Ended]:
            create_experiment(
                tx,
                an_experiment(),
                [source, child],
                group_bodies={},
                batch=one_each,
                retry_failed=False,
            )
            ended = pool.submit(live.end, held, success(held))
            wait([ended], timeout=0.5)  # it has to wait for our commit
            return ended

        ended = database.write_alone(submit_slowly).result()
    database.engine.dispose()

    assert ended.unlocked == (JobSpec.of((child,)),)


def test_batch_that_leaves_out_a_unit_stores_nothing(repository: ResultsRepository) -> None:
    with pytest.raises(ValueError, match="exactly one job"):
        submit(repository, [a_set(1), a_set(2)], batch=lambda units: one_each(units[:1]))

    assert repository.experiments() == []
    assert repository.unit_status([UnitId(a_set(1).id)]) == {}


def test_unit_that_needs_an_unknown_one_is_refused(repository: ResultsRepository) -> None:
    with pytest.raises(ValueError, match=r"dst-0+1 is needed"):
        submit(repository, [a_network_on(a_set(1))])


def test_inputs_of_linked_jobs_are_wanted_too(repository: ResultsRepository) -> None:
    sources = [a_set(1), a_set(2)]
    networks = [a_network_on(sources[0], number=1), a_network_on(sources[1], number=2)]
    first = submit(repository, [*sources, *networks], batch=lambda u: [*by_two(u)])
    repository.cancel_experiment(first.experiment_id)

    again = submit(repository, [sources[0], networks[0]])

    assert again.linked == 3
    assert sorted(job.id for job in again.ready) == sorted(job.id for job in one_each(sources))


def by_two(units: Sequence[Unit]) -> list[JobSpec]:
    """Each set alone, the networks together."""
    sets = [unit for unit in units if unit.kind is JobKind.DISTILL]
    return [*one_each(sets), JobSpec.of(tuple(u for u in units if u not in sets))]


def test_unit_status_knows_state_and_carrier(repository: ResultsRepository) -> None:
    made, pending, unknown = a_set(1), a_set(2), a_set(3)
    submit(repository, [made])
    make(repository)
    submit(repository, [pending])

    status = repository.unit_status([UnitId(unit.id) for unit in (made, pending, unknown)])

    assert {
        unit_id: (each.state, each.job_id, each.job_state) for unit_id, each in status.items()
    } == {
        made.id: (UnitState.DONE, job_of(made), JobState.SUCCEEDED),
        pending.id: (UnitState.PENDING, job_of(pending), JobState.READY),
    }


@pytest.mark.slow
def test_ten_thousand_jobs_are_submitted_and_linked(live: ResultsRepository) -> None:
    sets = [a_set(number) for number in range(2_500)]
    networks = [a_network_on(unit, number=number) for number, unit in enumerate(sets)]
    cells = [a_cell_on(networks[number // 2], number) for number in range(5_000)]

    first = submit(live, [*sets, *networks, *cells])
    second = submit(live, [*sets, *networks, *cells])

    assert (first.created, len(first.ready)) == (10_000, 2_500)
    assert (second.created, second.linked, second.ready) == (0, 10_000, ())


# ---- interest and priority -------------------------------------------------------------------


def test_cancelled_experiment_leaves_jobs_that_another_wants(repository: ResultsRepository) -> None:
    shared, alone = a_set(1), a_set(2)
    first = submit(repository, [shared, alone])
    submit(repository, [shared])

    cancelled = repository.cancel_experiment(first.experiment_id)

    assert cancelled == (job_of(alone),)
    assert repository.job(job_of(alone)).state is JobState.CANCELLED
    assert repository.job(job_of(shared)).state is JobState.READY
    assert repository.cancel_experiment(first.experiment_id) == ()


def test_priority_is_the_highest_of_the_experiments_that_want_the_job(
    repository: ResultsRepository,
) -> None:
    priorities = []
    submit(repository, [a_set(1)], priority=1)
    urgent = submit(repository, [a_set(1)], priority=7)
    priorities.append(repository.job(job_of(a_set(1))).priority)
    submit(repository, [a_set(1)], priority=3)
    repository.cancel_experiment(urgent.experiment_id)
    priorities.append(repository.job(job_of(a_set(1))).priority)

    assert priorities == [7, 3]


def test_cancelling_one_job_keeps_the_rest_of_the_experiment(
    repository: ResultsRepository,
) -> None:
    submitted = submit(repository, [a_set(1), a_set(2)])

    repository.request_cancel(job_of(a_set(1)))

    view = repository.experiment(submitted.experiment_id)
    assert view.jobs == {JobState.CANCELLED: 1, JobState.READY: 1}
    assert not view.is_finished


def test_what_is_unknown_is_not_found(repository: ResultsRepository) -> None:
    for ask in (
        lambda: repository.cancel_experiment(NOBODY),
        lambda: repository.experiment(NOBODY),
        lambda: repository.request_cancel(NO_JOB),
        lambda: repository.retry(NO_JOB),
        lambda: repository.quarantine(NO_JOB, 1, lambda: None),
        lambda: repository.job(NO_JOB),
        lambda: repository.job_spec(NO_JOB),
        lambda: repository.carrier(UnitId("dst-none")),
        lambda: repository.recompute(GroupId("grp-none"), lambda _body, _rows: []),
        lambda: repository.dead_letter(1),
        lambda: repository.mark_replayed(1),
        lambda: repository.drop_dead_letter(1),
    ):
        with pytest.raises(NotFound, match=r"^no "):
            ask()


# ---- the ways out of a terminal state --------------------------------------------------------


def test_resubmitting_makes_a_cancelled_job_ready_with_a_higher_token(
    repository: ResultsRepository,
) -> None:
    first = submit(repository, [a_set(1)])
    repository.end(claim(repository), retry_in(0))
    repository.cancel_experiment(first.experiment_id)

    again = submit(repository, [a_set(1)])

    job = repository.job(job_of(a_set(1)))
    assert again.ready == (JobSpec.of((a_set(1),)),)
    assert (job.state, job.token, job.attempt, job.error) == (JobState.READY, 2, 0, None)


def test_failed_job_is_named_by_a_submission_and_run_again_only_if_asked(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    repository.end(claim(repository), failed())

    without = submit(repository, [a_set(1)])
    with_retry = submit(repository, [a_set(1)], retry_failed=True)

    assert (without.failed, without.ready) == ((job_of(a_set(1)),), ())
    assert (with_retry.failed, with_retry.ready) == ((), (JobSpec.of((a_set(1),)),))
    assert repository.job(job_of(a_set(1))).token == 2


def test_retry_runs_a_failed_job_with_all_its_attempts(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    repository.end(claim(repository), failed())

    ready = repository.retry(job_of(a_set(1)))
    held = claim(repository)

    assert ready == (held.job,)
    assert (held.token, held.attempt) == (3, 1)


def test_each_failure_of_a_job_is_to_be_buried_once(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    job_id = job_of(a_set(1))
    held = claim(repository)
    repository.end(held, failed())

    repository.mark_buried(job_id, held.token - 1)  # an older failure
    before = repository.unburied(10)
    repository.mark_buried(job_id, held.token)
    after = repository.unburied(10)
    repository.retry(job_id)
    while_it_waits = repository.unburied(10)
    repository.end(claim(repository), failed())

    assert (before, after, while_it_waits) == ([job_id], [], [])
    assert repository.unburied(10) == [job_id]


def test_retry_leaves_alone_what_did_not_fail_or_is_unwanted(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    done = make(repository)
    unwanted = submit(repository, [a_set(2)])
    repository.end(claim(repository), failed())
    repository.cancel_experiment(unwanted.experiment_id)

    ready = [*repository.retry(done), *repository.retry_failed(unwanted.experiment_id)]

    assert ready == []
    assert repository.job(done).state is JobState.SUCCEEDED
    assert repository.job(job_of(a_set(2))).state is JobState.FAILED


def test_retry_failed_is_limited_to_an_experiment(repository: ResultsRepository) -> None:
    first = submit(repository, [a_set(1)])
    submit(repository, [a_set(2)])
    for _ in range(2):
        repository.end(claim(repository), failed())

    of_first = repository.retry_failed(first.experiment_id)
    of_all = repository.retry_failed(None)

    assert of_first == (JobSpec.of((a_set(1),)),)
    assert of_all == (JobSpec.of((a_set(2),)),)


class Manifests:
    """Counts how often the manifest was deleted; the store may be down."""

    def __init__(self, *, store_is_down: bool = False) -> None:
        self.deleted = 0
        self.store_is_down = store_is_down

    def delete(self) -> None:
        if self.store_is_down:
            raise ConnectionError("the store is down")
        self.deleted += 1


def test_quarantine_makes_the_producer_run_again_and_its_dependants_wait(
    repository: ResultsRepository,
) -> None:
    source = a_set(1)
    network = a_network_on(source)
    submit(repository, [source, network])
    producer = make(repository)
    manifests = Manifests()

    ready = repository.quarantine(producer, 1, manifests.delete)
    again = repository.quarantine(producer, 1, manifests.delete)

    assert (ready, again, manifests.deleted) == ((JobSpec.of((source,)),), (), 1)
    job = repository.job(producer)
    assert (job.state, job.token, job.attempt) == (JobState.READY, 2, 0)
    assert repository.job(job_of(network)).state is JobState.WAITING
    assert repository.unit_status([UnitId(source.id)])[UnitId(source.id)].state is UnitState.PENDING


def test_quarantine_of_what_was_made_anew_since_does_nothing(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    producer = make(repository)
    repository.quarantine(producer, 1, Manifests().delete)
    make(repository)
    manifests = Manifests()

    assert repository.quarantine(producer, 1, manifests.delete) == ()
    assert manifests.deleted == 0
    assert repository.job(producer).state is JobState.SUCCEEDED


def test_quarantine_changes_nothing_when_the_manifest_cannot_be_deleted(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    producer = make(repository)

    with pytest.raises(ConnectionError):
        repository.quarantine(producer, 1, Manifests(store_is_down=True).delete)

    assert repository.job(producer).state is JobState.SUCCEEDED


def test_reader_of_a_quarantined_artifact_waits_for_the_new_one(
    repository: ResultsRepository,
) -> None:
    source = a_set(1)
    submit(repository, [source, a_network_on(source)])
    producer = make(repository)
    reader = claim(repository, JobKind.TRAIN)
    repository.quarantine(producer, 1, Manifests().delete)

    repository.end(reader, retry_in(0))
    while_missing = repository.job(reader.job_id).state
    remade = claim(repository)
    ended = repository.end(remade, success(remade))

    assert while_missing is JobState.WAITING
    assert ended.unlocked == (reader.job,)


# ---- healing ---------------------------------------------------------------------------------


def test_sweeping_twice_equals_sweeping_once(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)])
    for _ in range(3):
        claim(repository)
        clock.advance(TTL_S + 1)

    first = repository.sweep()
    after_first = repository.jobs()
    second = repository.sweep()

    assert (first, second) == ((), ())
    assert after_first[0].state is JobState.FAILED
    assert repository.jobs() == after_first


def test_blocked_jobs_are_counted_through_others_and_run_after_a_retry(
    repository: ResultsRepository,
) -> None:
    source, good = a_set(1), a_set(2)
    network = a_network_on(source)
    cell = a_cell_on(network)
    submitted = submit(repository, [source, good, network, cell])
    held = {claimed.job.units[0].id: claimed for claimed in (claim(repository), claim(repository))}
    repository.end(held[source.id], failed())
    repository.end(held[good.id], success(held[good.id]))

    view = repository.experiment(submitted.experiment_id)
    cause = repository.job(job_of(cell)).blocked_by
    repository.retry(job_of(source))

    assert (view.blocked, view.is_finished) == (2, True)
    assert cause == job_of(source)
    assert repository.experiment(submitted.experiment_id).blocked == 0
    assert repository.job(job_of(cell)).blocked_by is None


# ---- numbers ---------------------------------------------------------------------------------


def a_metric(subject: str, value: float = 0.5, slice: str = "", **over: Any) -> MetricRow:
    values: dict[str, Any] = {
        "scope": MetricScope.DISTILLED_SET,
        "subject": subject,
        "metric": "clean-accuracy",
        "slice": slice,
        "value": value,
        "unit": "fraction",
        "present": 1,
        "expected": 2,
    }
    return MetricRow(**values | over)


def test_recompute_sees_done_and_wanted_units_and_counts_them_as_aggregated(
    repository: ResultsRepository,
) -> None:
    made, pending, unwanted = (a_network_on(number=number, group=GROUP) for number in range(3))
    submit(repository, [made])
    make(repository, JobKind.TRAIN, accuracy=0.5)
    submit(repository, [made, pending])
    dropped = submit(repository, [unwanted])
    repository.cancel_experiment(dropped.experiment_id)
    seen: list[tuple[str, UnitState, Mapping[str, Any]]] = []

    def compute(body: Mapping[str, Any], rows: Sequence[UnitRow]) -> list[MetricRow]:
        assert body == GROUP_BODY
        seen.extend((row.unit_id, row.state, row.result) for row in rows)
        return [a_metric(GROUP)]

    before = repository.groups_to_aggregate(10)
    count = repository.recompute(GROUP, compute)

    assert seen == [
        (made.id, UnitState.DONE, {"accuracy": 0.5}),
        (pending.id, UnitState.PENDING, {}),
    ]
    assert (before, count, repository.groups_to_aggregate(10)) == ([GROUP], 1, [])


def test_recompute_replaces_all_numbers_of_the_group(repository: ResultsRepository) -> None:
    network = a_network_on(group=GROUP)
    submit(repository, [network])
    old = [a_metric(GROUP), a_metric(GROUP, slice="pgd"), a_metric(network.id, metric="drop")]
    undefined = MetricRow(
        MetricScope.DISTILLED_SET, GROUP, "drop-rate", "", None, "fraction", 0, 2, reason="no clean"
    )
    new = [a_metric(GROUP, 0.25, low=0.125, high=0.5), undefined]

    repository.recompute(GROUP, lambda _body, _rows: old)
    for _ in range(2):
        repository.recompute(GROUP, lambda _body, _rows: new)

    assert repository.metrics([GROUP, network.id]) == new


def test_number_of_a_stranger_is_refused(repository: ResultsRepository) -> None:
    submit(repository, [a_network_on(group=GROUP)])

    with pytest.raises(ValueError, match="is not of group"):
        repository.recompute(GROUP, lambda _body, _rows: [a_metric(a_set(1).id)])


def test_recomputing_at_once_leaves_one_row_for_each_number(live: ResultsRepository) -> None:
    submit(live, [a_network_on(group=GROUP)])
    rows = [a_metric(GROUP, slice=str(number)) for number in range(20)]

    with ThreadPoolExecutor(4) as pool:
        counts = list(
            pool.map(lambda _: live.recompute(GROUP, lambda _body, _rows: rows), range(8))
        )

    assert counts == [20] * 8
    assert len(live.metrics([GROUP])) == 20


def test_unit_that_is_done_while_its_group_is_computed_stays_news(
    live: ResultsRepository,
) -> None:
    submit(live, [a_network_on(number=number, group=GROUP) for number in range(2)])
    make(live, JobKind.TRAIN)
    late = claim(live, JobKind.TRAIN)
    end = threading.Thread(target=live.end, args=(late, success(late)))

    def compute(_body: Mapping[str, Any], rows: Sequence[UnitRow]) -> list[MetricRow]:
        if not end.ident:
            end.start()
            end.join(timeout=0.5)  # Postgres ends it now, SQLite after this transaction
        return [a_metric(GROUP)]

    live.recompute(GROUP, compute)
    end.join()

    assert live.groups_to_aggregate(10) == [GROUP]


def test_leaderboard_shows_the_groups_of_an_experiment(repository: ResultsRepository) -> None:
    other_body = {"network": "vgg"}
    other = group_id_of(other_body)
    first = submit(repository, [a_network_on(number=1, group=GROUP)])
    second = repository.create_experiment(
        an_experiment(),
        [a_network_on(number=2, group=other)],
        groups={other: other_body},
        batch=one_each,
    )
    for group in (GROUP, other):
        repository.recompute(group, lambda _b, _r, group=group: [a_metric(group)])  # type: ignore[misc]

    (row,) = repository.leaderboard(first.experiment_id)

    assert (row.group_id, row.group) == (GROUP, GROUP_BODY)
    assert row.metrics == {("clean-accuracy", ""): a_metric(GROUP)}
    assert [each.group_id for each in repository.leaderboard(second.experiment_id)] == [other]
    assert {each.group_id for each in repository.leaderboard()} == {GROUP, other}


# ---- reading ---------------------------------------------------------------------------------


def test_jobs_are_filtered_and_paged(repository: ResultsRepository, clock: ManualClock) -> None:
    first = submit(repository, [a_set(1), a_set(2)])
    clock.advance(1)
    submit(repository, [a_set(3), a_network_on(a_set(3))])
    running = claim(repository)

    def ids(**filters: Any) -> set[JobId]:
        return {job.job_id for job in repository.jobs(**filters)}

    assert ids(experiment_id=first.experiment_id) == {job_of(a_set(1)), job_of(a_set(2))}
    assert ids(state=JobState.RUNNING) == {running.job_id}
    assert ids(kind=JobKind.TRAIN) == {job_of(a_network_on(a_set(3)))}
    pages = [repository.jobs(limit=3, offset=offset) for offset in (0, 3)]
    assert [job for page in pages for job in page] == repository.jobs()


def test_job_shows_what_it_makes_and_who_runs_it(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1), a_set(2)], batch=by_kind)
    clock.advance(5)
    held = claim(repository, owner="host-1")

    job = repository.job(held.job_id)

    assert (job.units, job.label, job.owner) == (2, "synthesis · 2 units", "host-1")
    assert (job.created_at, job.started_at) == (clock.now() - 5, clock.now())
    assert repository.job_spec(held.job_id) == held.job


def test_attempts_keep_failures_and_facts(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    first = claim(repository)
    repository.end(first, retry_in(0))
    second = claim(repository)
    repository.end(
        second, Outcome(EndKind.SUCCEEDED, success(second).results, facts={"device": "cpu"})
    )

    attempts = repository.attempts(first.job_id)

    assert [(each.token, each.outcome) for each in attempts] == [
        (1, EndKind.RETRY),
        (2, EndKind.SUCCEEDED),
    ]
    assert attempts[0].failure == retry_in(0).failure
    assert attempts[1].facts == {"device": "cpu"}


def test_units_of_an_experiment_carry_their_results(repository: ResultsRepository) -> None:
    submitted = submit(repository, [a_set(1), a_set(2)], batch=by_kind)
    job_id = make(repository, images=10, loss=float("inf"))

    units = repository.units(submitted.experiment_id)

    assert [unit.unit_id for unit in units] == [a_set(1).id, a_set(2).id]
    assert {unit.job_id for unit in units} == {job_id}
    assert units[0].result == {"images": 10, "loss": None}


def test_newest_experiment_comes_first(repository: ResultsRepository, clock: ManualClock) -> None:
    for name in ("old", "new"):
        submit(repository, [a_set(1)], name=name)
        clock.advance(1)

    assert [view.name for view in repository.experiments()] == ["new", "old"]
    assert [view.name for view in repository.experiments(limit=1)] == ["new"]
    assert repository.experiments()[0].spec == an_experiment(name="new").to_json()


# ---- registers -------------------------------------------------------------------------------


def test_dead_letter_is_kept_once_and_cut(repository: ResultsRepository) -> None:
    letter: dict[str, Any] = {
        "topic": "jobs.train",
        "reason": "no JSON\x00",
        "report": "é" * REPORT_LIMIT_BYTES,
        "sha256": "ab" * 32,
        "size_bytes": 7,
    }

    number = repository.add_dead_letter(**letter)
    again = repository.add_dead_letter(**letter)
    repository.mark_replayed(number)

    (kept,) = repository.dead_letters()
    assert again == number == kept.dead_letter_id
    assert kept.reason == "no JSON"
    assert len(kept.report.encode()) == REPORT_LIMIT_BYTES
    assert kept.replayed_at is not None
    repository.drop_dead_letter(number)
    assert repository.dead_letters() == []


def test_latest_asset_is_the_one_added_last(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    first, second = (
        ArtifactRef(key=f"assets/{digit}", sha256=digit * 64, size_bytes=1) for digit in "ab"
    )
    repository.add_asset("datasets", "mine", first, {"classes": 10})
    clock.advance(1)
    repository.add_asset("datasets", "mine", second)
    latest = repository.asset("datasets", "mine")
    clock.advance(1)
    repository.add_asset("datasets", "mine", first)

    assert latest is not None
    assert latest.ref == second
    assert [asset.version for asset in repository.assets("datasets")] == ["a" * 64, "b" * 64]
    by_version = repository.asset("datasets", "mine", "a" * 64)
    assert by_version is not None
    assert by_version.facts == {"classes": 10}
    assert repository.asset("weights", "mine") is None
    repository.add_asset("datasets", "mine", first, {"classes": 11})
    said_again = repository.asset("datasets", "mine", "a" * 64)
    assert said_again is not None
    assert said_again.facts == {"classes": 11}


def test_workers_are_those_seen_lately(repository: ResultsRepository, clock: ManualClock) -> None:
    repository.heartbeat("old", "train", None)
    repository.heartbeat("busy", "train", None)
    clock.advance(100)
    repository.heartbeat("busy", "train", NO_JOB)

    (worker,) = repository.workers(seen_within_s=60)

    assert (worker.owner, worker.job_id) == ("busy", NO_JOB)


def test_check_names_the_database_and_its_schema(repository: ResultsRepository) -> None:
    line = repository.check()

    assert line.endswith(f", schema {newest_revision()}")
    assert line.startswith(("sqlite 3.", "postgresql 1"))
