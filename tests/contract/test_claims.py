"""Who runs what, on both databases: one winner for each claim, whatever dies when."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from overproof.core.clock import ManualClock
from overproof.core.ids import JobId
from overproof.core.retry import DEFAULT_RETRY
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.results.engine import create_engine
from overproof.results.repository import ResultsRepository
from overproof.results.views import EndKind, Outcome, Progress, Renewal
from tests.jobs import (
    TTL_S,
    a_network_on,
    a_set,
    claim,
    failed,
    one_each,
    retry_in,
    submit,
    success,
)

RELEASED = Outcome(EndKind.RELEASED)
CANCELLED = Outcome(EndKind.CANCELLED)


def job_of(number: int) -> JobId:
    """The job of `a_set(number)` when each unit has its own."""
    return JobSpec.of((a_set(number),)).job_id


# ---- one winner ------------------------------------------------------------------------------


def drain(url: str, owner: str) -> list[JobId]:
    """Claim and end until there is nothing more; the jobs that were claimed."""
    taken = []
    with closing(ResultsRepository(create_engine(url))) as repository:
        while claimed := repository.claim(JobKind.DISTILL, owner=owner, ttl_s=TTL_S):
            taken.append(claimed.job_id)
            assert repository.end(claimed, success(claimed)).accepted
    return taken


def test_each_of_200_jobs_has_one_winner_among_8_threads(
    results_url: str, live: ResultsRepository
) -> None:
    submit(live, [a_set(number) for number in range(200)])

    with ThreadPoolExecutor(8) as pool:
        owners = [f"worker-{number}" for number in range(8)]
        taken = list(pool.map(lambda owner: drain(results_url, owner), owners))

    assert Counter(job for jobs in taken for job in jobs) == Counter(map(job_of, range(200)))
    assert len(live.jobs(state=JobState.SUCCEEDED, limit=300)) == 200


DRAIN = """
import sys
from overproof.core.states import JobKind
from overproof.results.engine import create_engine
from overproof.results.repository import ResultsRepository
from overproof.results.views import EndKind, Outcome

repository = ResultsRepository(create_engine(sys.argv[1]))
while claim := repository.claim(JobKind.DISTILL, owner=sys.argv[2], ttl_s=60):
    outcome = Outcome(EndKind.SUCCEEDED, {unit.id: {} for unit in claim.job.units})
    assert repository.end(claim, outcome).accepted
    print(claim.job_id)
"""


@pytest.mark.slow
def test_each_job_has_one_winner_among_processes(results_url: str, live: ResultsRepository) -> None:
    submit(live, [a_set(number) for number in range(100)])

    workers = [
        subprocess.Popen(
            [sys.executable, "-c", DRAIN, results_url, f"worker-{number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    outputs = [worker.communicate(timeout=100)[0] for worker in workers]

    assert [worker.returncode for worker in workers] == [0] * 3
    assert Counter("".join(outputs).split()) == Counter(map(job_of, range(100)))


def test_nothing_to_claim_is_none(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])

    assert repository.claim(JobKind.ATTACK, owner="worker", ttl_s=TTL_S) is None


def test_stale_token_ends_nothing(repository: ResultsRepository, clock: ManualClock) -> None:
    submit(repository, [a_set(1)])
    stale = claim(repository, owner="paused")
    clock.advance(TTL_S + 1)
    fresh = claim(repository, owner="quick")
    before = repository.job(fresh.job_id)

    ended = [repository.end(stale, outcome) for outcome in (success(stale), failed(), RELEASED)]

    assert not any(each.accepted or each.unlocked for each in ended)
    assert repository.renew(stale, None) is Renewal.LOST
    assert repository.job(fresh.job_id) == before
    assert repository.end(fresh, success(fresh)).accepted


def test_second_end_of_a_claim_changes_nothing(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    held = claim(repository)
    repository.end(held, success(held))

    assert not repository.end(held, failed()).accepted
    assert repository.job(held.job_id).state is JobState.SUCCEEDED


def test_end_needs_a_result_for_each_unit(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    held = claim(repository)

    with pytest.raises(ValueError, match="without a result"):
        repository.end(held, Outcome(EndKind.SUCCEEDED))


# ---- leases and attempts ---------------------------------------------------------------------


def test_renewal_holds_even_after_expiry_while_nobody_else_claimed(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)])
    held = claim(repository)
    clock.advance(TTL_S + 1)

    assert repository.renew(held, None) is Renewal.HELD
    assert repository.claim(JobKind.DISTILL, owner="other", ttl_s=TTL_S) is None


def test_renewal_carries_progress_and_leaves_out_what_is_no_number(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    held = claim(repository)

    repository.renew(held, Progress(3, 10, {"accuracy": 0.5, "loss": float("nan")}))
    repository.renew(held, None)

    assert repository.job(held.job_id).progress == Progress(3, 10, {"accuracy": 0.5})


def test_expired_lease_is_claimed_as_the_next_attempt(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)])
    claim(repository, owner="dies")
    clock.advance(TTL_S + 1)

    second = claim(repository, owner="lives")

    assert (second.token, second.attempt) == (2, 2)
    lost, running = repository.attempts(second.job_id)
    assert lost.outcome is EndKind.RETRY
    assert lost.failure is not None
    assert lost.failure.type_name == "WorkerLost"
    assert (running.owner, running.outcome) == ("lives", None)


def test_worker_that_dies_in_every_attempt_fails_the_job(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)])
    for _ in range(DEFAULT_RETRY.max_attempts):
        last = claim(repository)
        clock.advance(TTL_S + 1)

    assert repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S) is None
    assert repository.expire_lost() == (last.job_id,)
    job = repository.job(last.job_id)
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.startswith("WorkerLost: ")
    assert not repository.end(last, success(last)).accepted
    assert repository.attempts(last.job_id)[-1].outcome is EndKind.FAILED


def test_released_job_is_due_at_once_and_the_attempt_does_not_count(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1)])
    first = claim(repository)

    ended = repository.end(first, RELEASED)
    second = claim(repository)

    assert ended.unlocked == (first.job,)
    assert (second.token, second.attempt) == (2, 1)


def test_retry_waits_until_it_is_due(repository: ResultsRepository, clock: ManualClock) -> None:
    submit(repository, [a_set(1)])
    first = claim(repository)

    ended = repository.end(first, retry_in(30))
    early = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S)
    clock.advance(31)
    second = claim(repository)

    assert ended.accepted
    assert ended.unlocked == ()
    assert early is None
    assert second.attempt == 2


def test_retry_of_the_last_attempt_is_a_failure(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    for _ in range(DEFAULT_RETRY.max_attempts):
        held = claim(repository)
        repository.end(held, retry_in(0))

    job = repository.job(held.job_id)
    assert job.state is JobState.FAILED
    assert job.error == "NonFiniteLoss: the loss is nan at step 3"
    assert [attempt.outcome for attempt in repository.attempts(held.job_id)] == [
        EndKind.RETRY,
        EndKind.RETRY,
        EndKind.FAILED,
    ]


# ---- order -----------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_longest_due(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    for number, priority in enumerate([0, 5, 0, 5]):
        submit(repository, [a_set(number)], priority=priority)
        clock.advance(1)

    order = [claim(repository).job_id for _ in range(4)]

    assert order == [job_of(1), job_of(3), job_of(0), job_of(2)]


def test_preferred_job_goes_first_among_equals(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)])
    clock.advance(1)
    submit(repository, [a_set(2)])

    taken = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S, prefer=job_of(2))

    assert taken is not None
    assert taken.job_id == job_of(2)


def test_preferred_job_yields_to_higher_priority(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1)])
    submit(repository, [a_set(2)], priority=1)

    taken = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S, prefer=job_of(1))

    assert taken is not None
    assert taken.job_id == job_of(2)


def test_preferred_job_that_is_taken_gives_another(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1), a_set(2)])
    first = claim(repository)

    taken = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S, prefer=first.job_id)

    assert taken is not None
    assert taken.job_id != first.job_id


# ---- quota, pause, breaker -------------------------------------------------------------------


def test_quota_limits_how_many_jobs_of_an_experiment_run(repository: ResultsRepository) -> None:
    submit(repository, [a_set(number) for number in range(4)], quota=2)
    first = claim(repository)
    claim(repository)

    over_quota = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S)
    repository.end(first, success(first))

    assert over_quota is None
    claim(repository)


def test_job_that_an_experiment_without_quota_wants_too_is_claimed(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(1), a_set(2)], quota=1)
    claim(repository)
    submit(repository, [a_set(2)])

    assert claim(repository).job_id in {job_of(1), job_of(2)}


def test_quota_holds_among_threads_that_claim_at_once(
    results_url: str, live: ResultsRepository
) -> None:
    submit(live, [a_set(number) for number in range(16)], quota=3)
    start = threading.Barrier(8)

    def claim_at_once(owner: int) -> bool:
        start.wait()
        return live.claim(JobKind.DISTILL, owner=str(owner), ttl_s=TTL_S) is not None

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim_at_once, range(8)))

    assert sum(won) == 3


def test_dead_worker_does_not_use_up_the_quota(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    submit(repository, [a_set(1)], quota=1)
    claim(repository)
    clock.advance(TTL_S + 1)

    assert claim(repository).attempt == 2


def test_paused_kind_is_not_claimed_until_resumed(repository: ResultsRepository) -> None:
    submit(repository, [a_set(1), a_set(2)])
    running = claim(repository)

    repository.pause(JobKind.DISTILL)
    while_paused = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S)
    still_held = repository.renew(running, None)
    repository.resume(JobKind.DISTILL)

    assert while_paused is None
    assert still_held is Renewal.HELD
    claim(repository)


def test_breaker_opens_after_failures_in_a_row_and_resume_closes_it(
    repository: ResultsRepository,
) -> None:
    submit(repository, [a_set(number) for number in range(7)])
    for _ in range(5):
        repository.end(claim(repository), failed())

    while_open = repository.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S)
    status = {each.kind: each for each in repository.kind_status()}
    repository.resume(JobKind.DISTILL)

    assert while_open is None
    assert status[JobKind.DISTILL].breaker_open
    assert status[JobKind.DISTILL].failures_in_a_row == 5
    assert status[JobKind.DISTILL].wanted == 0
    assert not status[JobKind.TRAIN].breaker_open
    claim(repository)


def test_success_begins_the_row_of_failures_anew(repository: ResultsRepository) -> None:
    submit(repository, [a_set(number) for number in range(9)])
    for _ in range(4):
        repository.end(claim(repository), failed())
    good = claim(repository)
    repository.end(good, success(good))

    repository.end(claim(repository), failed())

    status = {each.kind: each for each in repository.kind_status()}
    assert status[JobKind.DISTILL].failures_in_a_row == 1
    assert not status[JobKind.DISTILL].breaker_open


# ---- dependants ------------------------------------------------------------------------------


def test_claim_names_the_producers_of_its_inputs(repository: ResultsRepository) -> None:
    source = a_set(1)
    submit(repository, [source, a_network_on(source)])
    parent = claim(repository)
    repository.end(parent, success(parent))

    child = claim(repository, JobKind.TRAIN)

    assert child.inputs == {source.id: parent.job_id}


def test_dependant_is_ready_when_its_last_input_is_done(repository: ResultsRepository) -> None:
    sources = [a_set(1), a_set(2)]
    network = a_network_on(*sources)
    submit(repository, [*sources, network])
    first, second = claim(repository), claim(repository)

    after_first = repository.end(first, success(first))
    after_second = repository.end(second, success(second))

    assert after_first.unlocked == ()
    assert [job.units for job in after_second.unlocked] == [(network,)]


def test_two_parents_that_end_at_once_unlock_their_dependant(live: ResultsRepository) -> None:
    rounds = range(10)
    sources = [a_set(number) for number in range(20)]
    children = [
        a_network_on(sources[2 * number], sources[2 * number + 1], number=number)
        for number in rounds
    ]
    submit(live, [*sources, *children])
    claims = {held.job.units[0].id: held for held in (claim(live) for _ in sources)}
    unlocked = []
    with ThreadPoolExecutor(2) as pool:
        for number in rounds:
            start = threading.Barrier(2)

            def end(source_number: int, start: threading.Barrier = start) -> list[JobSpec]:
                held = claims[sources[source_number].id]
                start.wait()
                return list(live.end(held, success(held)).unlocked)

            for ended in pool.map(end, [2 * number, 2 * number + 1]):
                unlocked += ended

    assert sorted(job.id for job in unlocked) == sorted(job.id for job in one_each(children))
    assert live.sweep() == ()


# ---- cancelling what runs --------------------------------------------------------------------


def test_holder_learns_of_a_cancellation_and_ends_the_job(repository: ResultsRepository) -> None:
    experiment = submit(repository, [a_set(1)])
    held = claim(repository)

    told = repository.cancel_experiment(experiment.experiment_id)

    assert told == (held.job_id,)
    assert repository.job(held.job_id).cancel_requested
    assert repository.renew(held, None) is Renewal.CANCEL
    assert repository.end(held, CANCELLED).accepted
    assert repository.job(held.job_id).state is JobState.CANCELLED


@pytest.mark.parametrize("outcome", [RELEASED, retry_in(0)], ids=["released", "retry"])
def test_unwanted_job_does_not_go_back_to_the_queue(
    repository: ResultsRepository, outcome: Outcome
) -> None:
    experiment = submit(repository, [a_set(1)])
    held = claim(repository)
    repository.cancel_experiment(experiment.experiment_id)

    ended = repository.end(held, outcome)

    assert ended.unlocked == ()
    assert repository.job(held.job_id).state is JobState.CANCELLED


def test_job_that_is_wanted_again_when_its_worker_stops_goes_back_to_the_queue(
    repository: ResultsRepository,
) -> None:
    experiment = submit(repository, [a_set(1)])
    held = claim(repository)
    repository.cancel_experiment(experiment.experiment_id)
    submit(repository, [a_set(1)])

    ended = repository.end(held, CANCELLED)

    assert ended.unlocked == (held.job,)
    assert claim(repository).attempt == 1


def test_unwanted_job_whose_worker_died_is_cancelled(
    repository: ResultsRepository, clock: ManualClock
) -> None:
    experiment = submit(repository, [a_set(1)])
    held = claim(repository)
    repository.cancel_experiment(experiment.experiment_id)
    clock.advance(TTL_S + 1)

    repository.sweep()

    assert repository.job(held.job_id).state is JobState.CANCELLED


# ---- how many workers are wanted -------------------------------------------------------------


def test_view_for_scaling_counts_what_claim_would_give(
    results_url: str, live: ResultsRepository
) -> None:
    submit(live, [a_set(number) for number in range(5)], quota=3)
    submit(live, [a_set(number) for number in range(10, 12)])
    running = claim(live)

    engine = create_engine(results_url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT kind, wanted FROM jobs_wanted")).all()
    engine.dispose()
    claimed = 1
    while live.claim(JobKind.DISTILL, owner="worker", ttl_s=TTL_S):
        claimed += 1

    assert {row.kind: row.wanted for row in rows} == {"distill": 5, "train": 0, "attack": 0}
    assert claimed == 5
    assert live.renew(running, None) is Renewal.HELD


def test_paused_kind_wants_only_the_workers_that_run(live: ResultsRepository) -> None:
    submit(live, [a_set(1), a_set(2)])
    claim(live)

    live.pause(JobKind.DISTILL)

    status = {each.kind: each for each in live.kind_status()}[JobKind.DISTILL]
    assert (status.paused, status.ready, status.running, status.wanted) == (True, 1, 1, 1)
