"""Whatever the interleaving of claims, ends, deaths and cancellations, the rules hold."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from overproof.core.clock import ManualClock
from overproof.core.ids import ExperimentId, JobId, UnitId
from overproof.core.retry import DEFAULT_RETRY
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState, UnitState
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.results.views import Claim, EndKind, JobView, Outcome, Renewal
from tests.jobs import TTL_S, a_network_on, a_set, failed, retry_in, submit, success

SETS = [a_set(1), a_set(2)]
UNITS = [*SETS, a_network_on(*SETS)]
JOBS = [JobSpec.of((unit,)).job_id for unit in UNITS]
KINDS = [JobKind.DISTILL, JobKind.TRAIN]
NEVER = 1_000_000  # of the breaker, which is not what is looked at here


@cache
def migrated() -> bytes:
    """A database file without rows."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/results.db")
        migrate(engine)
        engine.dispose()
        return Path(folder, "results.db").read_bytes()


class ClaimsMachine(RuleBasedStateMachine):
    """Two sets and a network that needs both; workers that pause, die and come back late.

    Attributes:
        lease_until: the last claim of each job → when its lease ends.
        may_leave: jobs that the latest rule was allowed to bring out of a terminal state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        (self.folder / "results.db").write_bytes(migrated())
        engine = create_engine(f"sqlite:///{self.folder}/results.db")
        self.repository = ResultsRepository(engine, breaker_limit=NEVER, now=self.clock.now)
        self.claims: list[Claim] = []
        self.lease_until: dict[JobId, float] = {}
        self.experiments: list[ExperimentId] = []
        self.before: dict[JobId, JobView] = {}
        self.may_leave: set[JobId] = set()

    def teardown(self) -> None:
        self.repository.close()
        shutil.rmtree(self.folder)

    def jobs(self) -> dict[JobId, JobView]:
        return {job.job_id: job for job in self.repository.jobs()}

    def holds(self, claim: Claim) -> bool:
        job = self.before[claim.job_id]
        return job.state is JobState.RUNNING and job.token == claim.token

    def some_claim(self, data: st.DataObject) -> Claim:
        # The latest ones are the likeliest to be good, older ones are stale.
        return self.claims[-1 - data.draw(st.integers(0, min(4, len(self.claims) - 1)))]

    # ---- what may happen ---------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.submit(retry_failed=False)

    @rule(retry_failed=st.booleans())
    def submit(self, retry_failed: bool) -> None:
        leaves = [JobState.CANCELLED, JobState.FAILED] if retry_failed else [JobState.CANCELLED]
        self.may_leave = {job.job_id for job in self.before.values() if job.state in leaves}
        submitted = submit(self.repository, UNITS, retry_failed=retry_failed)
        self.experiments.append(submitted.experiment_id)

    @rule(kind=st.sampled_from(KINDS), prefer=st.none() | st.sampled_from(JOBS))
    def claim(self, kind: JobKind, prefer: JobId | None) -> None:
        claimed = self.repository.claim(kind, owner="worker", ttl_s=TTL_S, prefer=prefer)
        if claimed is None:
            return
        was = self.before[claimed.job_id]
        lease_is_over = self.lease_until.get(claimed.job_id, 0) < self.clock.now()
        assert was.state is JobState.READY or (was.state is JobState.RUNNING and lease_is_over)
        assert (claimed.token, claimed.attempt) == (was.token + 1, was.attempt + 1)
        assert claimed.attempt <= DEFAULT_RETRY.max_attempts
        self.claims.append(claimed)
        self.lease_until[claimed.job_id] = self.clock.now() + TTL_S

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim = self.some_claim(data)

        renewal = self.repository.renew(claim, None)

        assert (renewal is not Renewal.LOST) == self.holds(claim)
        if renewal is not Renewal.LOST:
            asks_to_stop = renewal is Renewal.CANCEL
            assert asks_to_stop == self.before[claim.job_id].cancel_requested
            self.lease_until[claim.job_id] = self.clock.now() + TTL_S

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), kind=st.sampled_from(EndKind), delay_s=st.sampled_from([0.0, 30.0]))
    def end(self, data: st.DataObject, kind: EndKind, delay_s: float) -> None:
        claim = self.some_claim(data)
        outcomes = {
            EndKind.SUCCEEDED: success(claim),
            EndKind.FAILED: failed(),
            EndKind.RETRY: retry_in(delay_s),
        }

        ended = self.repository.end(claim, outcomes.get(kind, Outcome(kind)))

        assert ended.accepted == self.holds(claim)
        if not ended.accepted:
            assert self.jobs() == self.before

    @rule(seconds=st.sampled_from([1.0, TTL_S / 2, TTL_S + 1]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.repository.cancel_experiment(data.draw(st.sampled_from(self.experiments)))

    @rule(job_id=st.sampled_from(JOBS))
    def retry(self, job_id: JobId) -> None:
        if self.before[job_id].state is JobState.FAILED:
            self.may_leave = {job_id}
        self.repository.retry(job_id)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        claim = self.some_claim(data)
        job = self.before[claim.job_id]
        deleted: list[JobId] = []

        self.repository.quarantine(claim.job_id, claim.token, lambda: deleted.append(job.job_id))

        is_the_winner = job.state is JobState.SUCCEEDED and job.token == claim.token
        assert bool(deleted) == is_the_winner
        self.may_leave = set(deleted)

    @rule()
    def sweep(self) -> None:
        self.repository.sweep()
        swept = self.jobs()

        assert self.repository.sweep() == ()
        assert self.jobs() == swept

    # ---- what always holds -------------------------------------------------------------------

    @invariant()
    def rules_hold(self) -> None:
        now = self.jobs()
        self.terminal_states_were_left_only_by_the_named_transitions(now)
        self.before, self.may_leave = now, set()
        self.units_are_done_exactly_when_their_job_succeeded()
        self.network_is_ready_only_with_both_sets()
        self.at_most_one_claim_of_a_job_is_good()

    def terminal_states_were_left_only_by_the_named_transitions(
        self, now: dict[JobId, JobView]
    ) -> None:
        for job_id, was in self.before.items():
            assert now[job_id].token >= was.token
            if was.state.is_terminal and now[job_id].state is not was.state:
                assert job_id in self.may_leave
                assert now[job_id].token == was.token + 1

    def units_are_done_exactly_when_their_job_succeeded(self) -> None:
        for status in self.repository.unit_status(UnitId(unit.id) for unit in UNITS).values():
            assert (status.state is UnitState.DONE) == (status.job_state is JobState.SUCCEEDED)

    def network_is_ready_only_with_both_sets(self) -> None:
        if self.before and self.before[JOBS[2]].state is JobState.READY:
            assert {self.before[job_id].state for job_id in JOBS[:2]} == {JobState.SUCCEEDED}

    def at_most_one_claim_of_a_job_is_good(self) -> None:
        good = [claim.job_id for claim in self.claims if self.holds(claim)]
        assert len(good) == len(set(good))


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a database is at work
)
