"""The one door to the database. What is behind each method is in the module it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from overproof.core.ids import ComparisonId, ExperimentId, GroupId, JobId, UnitId
from overproof.core.refs import ArtifactRef
from overproof.core.retry import DEFAULT_RETRY, RetryPolicy
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.core.states import JobKind, JobState
from overproof.errors import DatabaseUnavailable
from overproof.results import (
    aggregation,
    claims,
    comparisons,
    control,
    reading,
    registers,
    submission,
)
from overproof.results.claims import ClaimRules
from overproof.results.engine import Database, Transaction
from overproof.results.migrate import newest_revision, revision_of
from overproof.results.transitions import expire_lost
from overproof.results.views import (
    Asset,
    AttemptView,
    Claim,
    Comparison,
    ComparisonRow,
    DeadLetter,
    Ended,
    ExperimentView,
    GroupUnits,
    JobView,
    KindStatus,
    LeaderboardRow,
    MetricRow,
    Outcome,
    Progress,
    Renewal,
    Submitted,
    UnitRow,
    UnitStatus,
    WorkerView,
)


class ResultsRepository:
    """Which jobs there are, who runs them, and what came out.

    Safe to use from several threads; many processes may share the database. Every method is one
    transaction: if the process dies inside it, nothing has happened. Frozen views go out, no live
    object leaves the package. Times are seconds since the epoch by the clock of the database, so
    that clocks of workers do not matter.

    A job is *wanted* while an experiment that is not cancelled asks for one of its units, or for
    a unit that needs one of them. A claim is fenced by its *token*, which every claim and every
    way out of a terminal state raises.

    Every method raises `DatabaseUnavailable` when the database does not answer.

    Args:
        engine: from `engine.create_engine`; the schema is made by `migrate.migrate`.
        retry: how often a job is tried.
        breaker_limit: FAILED jobs of a kind in a row after which none is claimed any more.
        now: replaces the clock of the database, for tests.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
        breaker_limit: int = 5,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._database = Database(engine, now)
        self._rules = ClaimRules(retry, breaker_limit)

    def close(self) -> None:
        """Close the idle connections; the repository opens new ones if used again."""
        self._database.engine.dispose()

    # ---- planning and submitting (submission.py) ---------------------------------------------

    def create_experiment(
        self,
        spec: ExperimentSpec,
        units: Sequence[Unit],
        *,
        groups: Mapping[GroupId, Mapping[str, Any]],
        batch: Callable[[Sequence[Unit]], Sequence[JobSpec]],
        comparisons: Sequence[Comparison] = (),
        retry_failed: bool = False,
    ) -> Submitted:
        """Store an experiment: new units become jobs, known ones are linked with their carriers.

        Linked jobs that are CANCELLED, or FAILED when `retry_failed`, are made WAITING or READY
        again. Of submissions that overlap, whichever comes first carries the common units.

        Args:
            spec: stored as it is.
            units: all units that the experiment asks for.
            groups: bodies of the groups that units or comparisons name.
            batch: puts each of the units it is given into exactly one job. Called inside the
                transaction with the units that no job carries yet; may be called again.
            comparisons: of these groups, to be computed beside them.
            retry_failed: run linked FAILED jobs again.

        Raises:
            ValueError: `batch` left out a unit, or a unit needs one that nobody submitted.
        """
        return self._database.write_alone(
            lambda tx: submission.create_experiment(
                tx,
                spec,
                units,
                group_bodies=groups,
                comparisons=comparisons,
                batch=batch,
                retry_failed=retry_failed,
            )
        )

    def unit_status(self, ids: Iterable[UnitId]) -> dict[UnitId, UnitStatus]:
        """State and carrier of those units that the database knows."""
        return self._database.read(lambda tx: submission.unit_status(tx, ids))

    # ---- running jobs (claims.py) ------------------------------------------------------------

    def claim(
        self, kind: JobKind, *, owner: str, ttl_s: float, prefer: JobId | None = None
    ) -> Claim | None:
        """Take the most urgent job of `kind` that may run; None when there is none.

        Highest priority first, then the one that is due longest. Jobs whose lease ran out are
        taken too, as the next attempt. Two callers never get the same token of a job.

        Args:
            kind: which jobs.
            owner: who asks, for people to find the process.
            ttl_s: seconds until the claim must be renewed.
            prefer: taken first, unless a job of higher priority may run.
        """
        return self._database.write(
            lambda tx: claims.claim(tx, self._rules, kind, owner=owner, ttl_s=ttl_s, prefer=prefer)
        )

    def renew(self, claim: Claim, progress: Progress | None) -> Renewal:
        """Hold the claim for another `claim.ttl_s` seconds, and store the progress if there is any.

        Works after the lease ran out too, as long as nobody else has claimed the job.
        """
        return self._database.write(lambda tx: claims.renew(tx, claim, progress))

    def end(self, claim: Claim, outcome: Outcome) -> Ended:
        """Record how the attempt ended; nothing happens when the token is stale.

        SUCCEEDED marks the units DONE and makes those dependants READY whose inputs are now
        complete. RETRY at the last attempt is FAILED. RELEASED and CANCELLED do not count as an
        attempt. What would go back to the queue but is wanted by nobody is CANCELLED.

        Returns:
            Whether the token was good, and the jobs to be announced: dependants, or the job
            itself when it is due again at once.

        Raises:
            ValueError: SUCCEEDED without a result for each unit of the job.
        """
        return self._database.write(lambda tx: claims.end(tx, self._rules, claim, outcome))

    # ---- control (control.py) ----------------------------------------------------------------

    def cancel_experiment(self, experiment_id: ExperimentId) -> tuple[JobId, ...]:
        """Withdraw the experiment's interest; the jobs that nobody wants any more.

        These are CANCELLED at once, except for RUNNING ones, whose workers are told when they
        renew. Cancelling twice changes nothing.

        Raises:
            NotFound: no such experiment.
        """
        return self._database.write_alone(lambda tx: control.cancel_experiment(tx, experiment_id))

    def request_cancel(self, job_id: JobId) -> None:
        """Withdraw the interest of all experiments in one job.

        Raises:
            NotFound: no such job.
        """
        self._database.write_alone(lambda tx: control.request_cancel(tx, job_id))

    def retry(self, job_id: JobId) -> tuple[JobSpec, ...]:
        """Run a FAILED job again, with all attempts, if a live experiment wants it.

        Returns:
            The job if it is READY now, to be announced; else nothing.

        Raises:
            NotFound: no such job.
        """
        return self._database.write_alone(lambda tx: control.retry(tx, job_id))

    def retry_failed(self, experiment_id: ExperimentId | None) -> tuple[JobSpec, ...]:
        """As `retry` for all FAILED jobs, of one experiment or of all; those READY now."""
        return self._database.write_alone(lambda tx: control.retry_failed(tx, experiment_id))

    def quarantine(
        self, job_id: JobId, token: int, delete_manifest: Callable[[], None]
    ) -> tuple[JobSpec, ...]:
        """Make a job run again whose artifact a reader found corrupt.

        Its units are PENDING again, and dependants that did not start wait for them. Does nothing
        when the job was made anew since, or is being made: safe twice.

        Args:
            job_id: the producer.
            token: of the manifest that was read.
            delete_manifest: removes that manifest; may be called twice.

        Returns:
            The job if it is READY now, to be announced.

        Raises:
            NotFound: no such job.
        """
        return self._database.write_alone(
            lambda tx: control.quarantine(tx, job_id, token, delete_manifest)
        )

    def expire_lost(self) -> tuple[JobId, ...]:
        """End the jobs whose worker died in their last attempt: FAILED with WorkerLost.

        If nobody wants them any more, they are CANCELLED instead.
        """
        return self._database.write_alone(
            lambda tx: expire_lost(tx, self._rules.retry.max_attempts, self._rules.breaker_limit)
        )

    def unburied(self, limit: int) -> list[JobId]:
        """FAILED jobs whose dead letter is not written yet, those that failed first in front."""
        return self._database.read(lambda tx: registers.unburied(tx, limit))

    def mark_buried(self, job_id: JobId, token: int) -> None:
        """Write down that the failure with this token has its dead letter; no other one."""
        self._database.write(lambda tx: registers.mark_buried(tx, job_id, token))

    def sweep(self) -> tuple[JobSpec, ...]:
        """Heal what crashes left behind: `expire_lost`, and unlock what can start.

        Returns:
            Jobs that became READY by it, to be announced. A second sweep finds nothing.
        """
        return self._database.write_alone(lambda tx: control.sweep(tx, self._rules))

    def pause(self, kind: JobKind) -> None:
        """Let no job of `kind` be claimed; running ones go on."""
        self._database.write(lambda tx: control.pause(tx, kind))

    def resume(self, kind: JobKind) -> None:
        """Let jobs of `kind` be claimed again; closes the breaker too."""
        self._database.write(lambda tx: control.resume(tx, kind))

    def kind_status(self) -> list[KindStatus]:
        """For each kind, whether its jobs are claimed, and how much there is to do."""
        return self._database.read(lambda tx: control.kind_status(tx, self._rules))

    # ---- numbers (aggregation.py) ------------------------------------------------------------

    def groups_to_aggregate(self, limit: int) -> list[GroupId]:
        """Groups with units that were done since their metrics were computed."""
        return self._database.read(lambda tx: aggregation.groups_to_aggregate(tx, limit))

    def recompute(
        self,
        group_id: GroupId,
        compute: Callable[[Mapping[str, Any], Sequence[UnitRow]], Sequence[MetricRow]],
    ) -> int:
        """Replace all metrics of a group by what `compute` makes of its units.

        The group is locked meanwhile, and exactly the units that were seen count as aggregated.
        Running it twice gives the same rows.

        Args:
            group_id: which group.
            compute: of the group's body and its units, DONE ones and those still wanted; every
                subject is the group or one of these units. Pure; may be called again.

        Returns:
            How many rows the group has now.

        Raises:
            NotFound: no such group.
            ValueError: a row with a subject outside the group.
        """
        return self._database.write(lambda tx: aggregation.recompute(tx, group_id, compute))

    def comparisons_to_aggregate(self, limit: int) -> list[ComparisonId]:
        """Comparisons that are new, or of which a group was computed since they were."""
        return self._database.read(lambda tx: comparisons.comparisons_to_aggregate(tx, limit))

    def recompute_comparison(
        self,
        comparison_id: ComparisonId,
        compute: Callable[[Comparison, Mapping[GroupId, GroupUnits]], Sequence[MetricRow]],
    ) -> int:
        """Replace all metrics of a comparison by what `compute` makes of its groups.

        The comparison is locked meanwhile: a group that is computed meanwhile makes it stale
        again. Running it twice gives the same rows.

        Args:
            comparison_id: which one.
            compute: of the comparison and its groups with their units; every subject is the
                comparison. Pure; may be called again.

        Returns:
            How many rows the comparison has now.

        Raises:
            NotFound: no such comparison.
            ValueError: a row with another subject.
        """
        return self._database.write(
            lambda tx: comparisons.recompute_comparison(tx, comparison_id, compute)
        )

    def comparisons(
        self, kind: str, experiment_id: ExperimentId | None = None
    ) -> list[ComparisonRow]:
        """Comparisons of a kind, all of whose groups are of the experiment if one is given."""
        return self._database.read(lambda tx: comparisons.comparisons_of(tx, kind, experiment_id))

    def members(self, comparison: Comparison) -> dict[GroupId, GroupUnits]:
        """The groups of a comparison with their units, as `recompute_comparison` sees them."""
        return self._database.read(lambda tx: comparisons.members_of(tx, comparison))

    def leaderboard(self, experiment_id: ExperimentId | None = None) -> list[LeaderboardRow]:
        """Groups that have metrics, of one experiment or all, by id: ranking is done elsewhere."""
        return self._database.read(lambda tx: aggregation.leaderboard(tx, experiment_id))

    def metrics(self, subjects: Iterable[str]) -> list[MetricRow]:
        """All metrics of these units, groups or comparisons."""
        return self._database.read(lambda tx: aggregation.metrics_of(tx, subjects))

    # ---- reading (reading.py) ----------------------------------------------------------------

    def experiments(self, limit: int = 100) -> list[ExperimentView]:
        """The newest experiments."""
        return self._database.read(lambda tx: reading.experiments_newest_first(tx, limit=limit))

    def experiment(self, experiment_id: ExperimentId) -> ExperimentView:
        """One experiment.

        Raises:
            NotFound: no such experiment.
        """
        return self._database.read(lambda tx: reading.experiment(tx, experiment_id))

    def jobs(
        self,
        experiment_id: ExperimentId | None = None,
        state: JobState | None = None,
        kind: JobKind | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> list[JobView]:
        """Jobs that fit all that is given, the newest first."""
        return self._database.read(
            lambda tx: reading.job_views(
                tx,
                experiment_id=experiment_id,
                state=state,
                kind=kind,
                limit=limit,
                offset=offset,
            )
        )

    def job(self, job_id: JobId) -> JobView:
        """One job.

        Raises:
            NotFound: no such job.
        """
        return self._database.read(lambda tx: reading.job(tx, job_id))

    def job_spec(self, job_id: JobId) -> JobSpec:
        """What a job is to make.

        Raises:
            NotFound: no such job.
        """
        return self._database.read(lambda tx: reading.job_spec(tx, job_id))

    def attempts(self, job_id: JobId) -> list[AttemptView]:
        """All attempts at a job, oldest first."""
        return self._database.read(lambda tx: reading.attempts_of(tx, job_id))

    def units(self, experiment_id: ExperimentId) -> list[UnitRow]:
        """All units that an experiment asks for, by id."""
        return self._database.read(lambda tx: reading.units_of(tx, experiment_id))

    def carrier(self, unit_id: UnitId) -> JobId:
        """The job that carries a unit.

        Raises:
            NotFound: no such unit.
        """
        return self._database.read(lambda tx: reading.carrier(tx, unit_id))

    # ---- registers (registers.py) ------------------------------------------------------------

    def add_dead_letter(
        self,
        *,
        topic: str,
        reason: str,
        report: str,
        sha256: str,
        size_bytes: int,
        job_id: str | None = None,
    ) -> int:
        """Write down a message that nobody could use; its number. The same one twice is one.

        Args:
            topic: where it was read.
            reason: one line.
            report: details; cut at 32 KiB.
            sha256: hex hash of the raw bytes, which are in the artifact store.
            size_bytes: of the raw bytes.
            job_id: the job it speaks of, if it says so.
        """
        return self._database.write(
            lambda tx: registers.add_dead_letter(
                tx,
                topic=topic,
                reason=reason,
                report=report,
                sha256=sha256,
                size_bytes=size_bytes,
                job_id=job_id,
            )
        )

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """The newest dead letters."""
        return self._database.read(lambda tx: registers.dead_letters_newest_first(tx, limit))

    def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        """One dead letter.

        Raises:
            NotFound: no such dead letter.
        """
        return self._database.read(lambda tx: registers.dead_letter(tx, dead_letter_id))

    def mark_replayed(self, dead_letter_id: int) -> None:
        """Write down that its raw bytes were published again.

        Raises:
            NotFound: no such dead letter.
        """
        self._database.write(lambda tx: registers.mark_replayed(tx, dead_letter_id))

    def drop_dead_letter(self, dead_letter_id: int) -> None:
        """Forget a dead letter.

        Raises:
            NotFound: no such dead letter.
        """
        self._database.write(lambda tx: registers.drop_dead_letter(tx, dead_letter_id))

    def add_asset(
        self, kind: str, name: str, ref: ArtifactRef, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Register stored bytes under a name; their hash is the version, and now the latest.

        Args:
            kind: `datasets` or `weights`.
            name: what people call it.
            ref: where the packed bytes are.
            facts: what lists show of it.
        """
        self._database.write(
            lambda tx: registers.add_asset(tx, kind=kind, name=name, ref=ref, facts=facts or {})
        )

    def asset(self, kind: str, name: str, version: str | None = None) -> Asset | None:
        """An asset by name, the latest version unless one is given; None when there is none."""
        return self._database.read(lambda tx: registers.asset(tx, kind, name, version))

    def assets(self, kind: str | None = None) -> list[Asset]:
        """All assets, each name's latest version first."""
        return self._database.read(lambda tx: registers.assets_of(tx, kind))

    def heartbeat(self, owner: str, kind: str, job_id: JobId | None) -> None:
        """Write down that a worker is alive, and what it runs."""
        self._database.write(lambda tx: registers.heartbeat(tx, owner, kind, job_id))

    def workers(self, seen_within_s: float) -> list[WorkerView]:
        """Workers that were seen in the last `seen_within_s` seconds."""
        return self._database.read(lambda tx: registers.workers_seen(tx, seen_within_s))

    def check(self) -> str:
        """One line for `overproof doctor`: which database it is, and the revision of its schema.

        Raises:
            DatabaseUnavailable: it does not answer, or its schema is not this version's.
        """
        return self._database.read(self._checked)

    def _checked(self, tx: Transaction) -> str:
        engine = self._database.engine
        where = engine.url.render_as_string(hide_password=True)
        version = ".".join(map(str, engine.dialect.server_version_info or ()))
        revision = revision_of(tx.connection)
        if revision != newest_revision():
            raise DatabaseUnavailable(
                f"database {where} has schema {revision}, this version needs "
                f"{newest_revision()}; run the migration"
            )
        return f"{engine.dialect.name} {version} at {where}, schema {revision}"
