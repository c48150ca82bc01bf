"""One claimed job as its worker sees it: start, watch, renew, end.

What a crash between two steps does. After the claim, or while the job runs: the lease ends, another
worker claims and resumes from the checkpoint. After the manifest: the next attempt finds it and
ends at once. After the transaction: the job has ended; the announcements are made up for by the
sweeps of workers and aggregator.
"""

from __future__ import annotations

import logging
import math

from overproof.artifacts import keys
from overproof.artifacts.manifest import Manifest
from overproof.bus.announcing import announce_ended, announce_ready, announce_started
from overproof.core.clock import Clock
from overproof.core.failure import FailureReport
from overproof.core.states import StopReason
from overproof.errors import (
    DatabaseUnavailable,
    MalformedArtifact,
    NotFound,
    StoreUnavailable,
    TimeLimitExceeded,
    WorkerLost,
)
from overproof.results.views import Claim, EndKind, Outcome, Progress, Renewal
from overproof.runtime.executor import Execution, Executor
from overproof.runtime.hooks import Hooks, Moment
from overproof.runtime.reports import Advanced, Done, Failed, JobRequest, UnusableInput
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

_log = logging.getLogger(__name__)

# While the database is down, it is asked this often whether it is back.
_OUTAGE_PAUSE_S = 1.0
# A job whose input has to be made anew waits for that, not for a delay.
_SOON_S = 1.0


class RunningJob:
    """Holds the claim of a job until it has ended or is lost. Used by one thread.

    Args:
        claim: just made.
        backends: told of the end.
        executor: runs the job.
        settings: lease, time limit, grace, retries.
        clock: for all of these.
        hooks: called around the steps.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        backends: Backends,
        executor: Executor,
        settings: Settings,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self.claim = claim
        self._backends = backends
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._fields = {
            "job_id": claim.job_id,
            "kind": claim.job.kind.value,
            "task": claim.job.task,
            "attempt": claim.attempt,
        }
        self._began_at = clock.monotonic()
        self._renew_every_s = settings.renew_s or claim.ttl_s / 3
        self._renew_at = self._began_at + self._renew_every_s
        self._progress: Progress | None = None
        self._stop_reason: StopReason | None = None
        self._kill_at = math.inf
        self._report: Done | Failed | None = None
        self._give_up_at = math.inf
        self._try_end_at = -math.inf
        self._execution = self._start(executor)

    @property
    def is_stopping(self) -> bool:
        """Whether the job was asked to stop."""
        return self._stop_reason is not None

    def request_stop(self, reason: StopReason) -> None:
        """Ask the job to stop; it is killed if it does not within the grace period."""
        now = self._clock.monotonic()
        self._give_up_at = min(self._give_up_at, now + self._settings.stop_grace_s)
        if self._stop_reason is not None and reason is not StopReason.CANCEL:
            return
        _log.info("job is asked to stop: %s", reason.value, extra=self._fields)
        self._stop_reason = reason
        if self._execution is not None and self._report is None:
            self._kill_at = min(self._kill_at, now + self._settings.stop_grace_s)
            self._execution.stop(reason)

    def step(self, wait_s: float) -> bool:
        """Go on for at most `wait_s`; whether the job is over."""
        if self._report is None:
            return self._watch(wait_s)
        return self._settle(wait_s)

    # ---- while it runs -----------------------------------------------------------------------

    def _start(self, executor: Executor) -> Execution | None:
        claim = self.claim
        self._hooks.before(Moment.START, claim)
        _log.info("job started", extra=self._fields)
        self._hooks.after_start(claim)
        try:
            execution = executor.start(JobRequest.of(claim))
        except WorkerLost as error:
            self._report = Failed(failure=FailureReport.of(error))
            return None
        self._hooks.before(Moment.ANNOUNCE_START, claim)
        announce_started(
            self._backends.bus, claim.job, self._clock, token=claim.token, owner=claim.owner
        )
        return execution

    def _watch(self, wait_s: float) -> bool:
        assert self._execution is not None
        now = self._clock.monotonic()
        if now >= self._renew_at and not self._renew():
            return True
        limit_at = self._began_at + (self._settings.time_limit_s or math.inf)
        if now >= limit_at and not self.is_stopping:
            self.request_stop(StopReason.TIMEOUT)
        if now >= self._kill_at:
            _log.warning("job did not stop in time and is killed", extra=self._fields)
            self._execution.kill()
            self._kill_at = math.inf
        next_at = min(self._renew_at, self._kill_at, limit_at if limit_at > now else math.inf)
        report = self._execution.poll(max(0.0, min(wait_s, next_at - now)))
        if isinstance(report, Advanced):
            self._progress = Progress(report.step, report.total, report.scalars)
            self._hooks.after_progress(self.claim, self._progress)
        elif report is not None:
            self._report = report
            self._hooks.before(Moment.SETTLE, self.claim)
        return False

    def _renew(self) -> bool:
        """Extend the lease; whether the job is still ours."""
        now = self._clock.monotonic()
        try:
            renewal = self._backends.repository.renew(self.claim, self._progress)
        except DatabaseUnavailable as error:
            # The job goes on: nobody else can claim it while the database is down.
            _log.warning("lease not renewed: %s", error, extra=self._fields)
            self._hooks.after_outage("database")
            self._renew_at = now + min(_OUTAGE_PAUSE_S, self._renew_every_s)
            return True
        self._hooks.after_answer()
        self._renew_at = now + self._renew_every_s
        if renewal is Renewal.LOST:
            self._lose()
            return False
        if renewal is Renewal.CANCEL and self._stop_reason is not StopReason.CANCEL:
            self.request_stop(StopReason.CANCEL)
        return True

    def _lose(self) -> None:
        _log.warning("job was taken over or has ended; this attempt stops", extra=self._fields)
        self._hooks.after_lost(self.claim)
        if self._execution is not None and self._report is None:
            self._execution.kill()
            self._execution.poll(self._settings.stop_grace_s)

    # ---- when it has ended -------------------------------------------------------------------

    def _settle(self, wait_s: float) -> bool:
        """Commit the end, then tell others; whether it is done."""
        assert self._report is not None
        now = self._clock.monotonic()
        if now < self._try_end_at:
            self._clock.sleep(min(wait_s, self._try_end_at - now))
            return False
        if isinstance(self._report, Failed) and self._report.unusable is not None:
            self._quarantine(self._report.unusable)
        outcome = self._outcome(self._report)
        self._hooks.before(Moment.END, self.claim)
        try:
            ended = self._backends.repository.end(self.claim, outcome)
        except DatabaseUnavailable as error:
            self._hooks.after_outage("database")
            if now >= self._give_up_at:
                _log.warning("end not recorded, another worker will: %s", error, extra=self._fields)
                return True
            _log.warning("end not recorded yet: %s", error, extra=self._fields)
            self._try_end_at = now + _OUTAGE_PAUSE_S
            return False
        self._hooks.after_answer()
        if not ended.accepted:
            self._lose()
            return True
        seconds = now - self._began_at
        _log.log(
            logging.WARNING if outcome.failure else logging.INFO,
            "job ended%s",
            f": {outcome.failure.summary}" if outcome.failure else "",
            extra=self._fields | {"outcome": outcome.kind.value, "seconds": round(seconds, 3)},
        )
        self._hooks.after_end(self.claim, outcome.kind, seconds)
        bus, job = self._backends.bus, self.claim.job
        self._hooks.before(Moment.ANNOUNCE_END, self.claim)
        announce_ended(bus, job, self._clock, token=self.claim.token, outcome=outcome.kind.value)
        self._hooks.before(Moment.ANNOUNCE_READY, self.claim)
        announce_ready(bus, ended.unlocked, self._clock)
        self._hooks.before(Moment.IDLE, self.claim)
        return True

    def _outcome(self, report: Done | Failed) -> Outcome:
        if isinstance(report, Done):
            return Outcome(EndKind.SUCCEEDED, results=report.results, facts=report.facts)
        failure, facts = report.failure, report.facts
        # A job that was killed for not stopping ends as one that stopped.
        stopped = failure.is_stop or failure.type_name == WorkerLost.__name__
        if stopped and self._stop_reason is StopReason.CANCEL:
            return Outcome(EndKind.CANCELLED, facts=facts)
        if stopped and self._stop_reason is StopReason.SHUTDOWN:
            return Outcome(EndKind.RELEASED, facts=facts)
        if stopped and self._stop_reason is StopReason.TIMEOUT:
            failure = FailureReport.of(
                TimeLimitExceeded(
                    f"the attempt took longer than {self._settings.time_limit_s:g} s; raise "
                    "OVERPROOF_TIME_LIMIT_S if it is slow rather than stuck"
                )
            )
        elif failure.is_stop:
            # A handler that stops unasked must not be handed back and claimed again for ever.
            failure = failure.model_copy(update={"retryable": True})
        retry = self._settings.retry
        if not failure.retryable or self.claim.attempt >= retry.max_attempts:
            return Outcome(EndKind.FAILED, failure=failure, facts=facts)
        delay_s = retry.delay_s(self.claim.attempt)
        if report.unusable is not None:
            delay_s = min(delay_s, _SOON_S)
        return Outcome(EndKind.RETRY, failure=failure, retry_in_s=delay_s, facts=facts)

    def _quarantine(self, unusable: UnusableInput) -> None:
        """Have the producer of an unusable input make it again.

        A failure is only logged: this job is tried again and would come back here.
        """
        self._hooks.before(Moment.QUARANTINE, self.claim)
        store, repository = self._backends.store, self._backends.repository
        key = keys.manifest(unusable.job_id)

        def delete_manifest() -> None:
            if _token_in(store.read(key)) != unusable.manifest_token:
                raise _MadeAnew
            store.delete(key)

        try:
            token = repository.job(unusable.job_id).token
            unlocked = repository.quarantine(unusable.job_id, token, delete_manifest)
        except _MadeAnew:
            return
        except (DatabaseUnavailable, StoreUnavailable, NotFound) as error:
            _log.warning("producer %s not quarantined: %s", unusable.job_id, error)
            return
        _log.warning("producer %s must run again", unusable.job_id, extra=self._fields)
        announce_ready(self._backends.bus, unlocked, self._clock)


class _MadeAnew(Exception):
    """The manifest is not the one that was found unusable: leave it alone."""


def _token_in(raw: bytes | None) -> int | None:
    """The token in a manifest, None when there is none or it cannot be read."""
    if raw is None:
        return None
    try:
        return Manifest.decode(raw).token
    except MalformedArtifact:
        return None
