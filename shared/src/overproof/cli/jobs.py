"""Looking at experiments and jobs, and changing one's mind about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from overproof.cli.backends import open_backends, open_repository
from overproof.cli.experiments import SEEN_LATELY_S
from overproof.cli.output import FAILED, JsonOption, moment, print_json, print_table, say, warn
from overproof.cli.progress import counts, show_progress
from overproof.core.clock import SystemClock
from overproof.core.states import JobState

if TYPE_CHECKING:
    from overproof.core.ids import ExperimentId, JobId
    from overproof.results.repository import ResultsRepository
    from overproof.results.views import JobView

AnyId = Annotated[
    str, typer.Argument(metavar="ID", help="Experiment, job or unit.", show_default=False)
]
Limit = Annotated[int, typer.Option(min=1, help="Show at most so many.")]

_POLL_S = 1.0


def status(
    of: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Experiment, job or unit; without it, all."),
    ] = None,
    limit: Limit = 100,
    as_json: JsonOption = False,
) -> None:
    """Show experiments and workers, the jobs of an experiment, or the attempts at a job."""
    with open_repository() as repository:
        if of is None:
            _show_all(repository, limit, as_json=as_json)
        elif _is_experiment(of):
            _show_experiment(repository, of, limit, as_json=as_json)
        else:
            _show_job(repository, _job_id(repository, of), as_json=as_json)


def watch(
    experiment: Annotated[
        str | None, typer.Argument(help="Experiment; without it, the newest.", show_default=False)
    ] = None,
) -> None:
    """Follow an experiment until it ends."""
    with open_repository() as repository:
        experiment_id = _experiment_id(repository, experiment)
        clock = SystemClock()
        with show_progress(repository, experiment_id, say) as update:
            while not update():
                clock.sleep(_POLL_S)
        failed = repository.jobs(experiment_id, JobState.FAILED)
    if failed:
        warn(f"{len(failed)} jobs failed; see `overproof status {experiment_id}`")
        raise typer.Exit(FAILED)


def cancel(of: AnyId) -> None:
    """Cancel an experiment, or one job for all experiments that want it.

    Jobs that another experiment wants too go on.
    """
    with open_repository() as repository:
        if _is_experiment(of):
            cancelled = repository.cancel_experiment(_experiment_id(repository, of))
            say(f"{of} is cancelled; {len(cancelled)} jobs are wanted by nobody else and end")
        else:
            job_id = _job_id(repository, of)
            repository.request_cancel(job_id)
            say(f"{job_id} is cancelled; if it runs, it ends at its next sign of life")


def retry(of: AnyId) -> None:
    """Start failed jobs again: one job, or all that an experiment wants."""
    from overproof.bus.announcing import announce_ready

    with open_backends() as (_, backends):
        repository = backends.repository
        if _is_experiment(of):
            ready = repository.retry_failed(_experiment_id(repository, of))
        else:
            ready = repository.retry(_job_id(repository, of))
        announce_ready(backends.bus, ready, SystemClock())
    say(f"{len(ready)} jobs are ready again")


# ---- ids -------------------------------------------------------------------------------------


def _is_experiment(text: str) -> bool:
    return text.startswith("exp-")


def _experiment_id(repository: ResultsRepository, text: str | None) -> ExperimentId:
    """The id that a person typed, checked; the newest experiment for None."""
    from overproof.core.ids import ExperimentId
    from overproof.errors import NotFound

    if text is not None:
        return repository.experiment(ExperimentId(text)).experiment_id
    newest = repository.experiments(limit=1)
    if not newest:
        raise NotFound("there is no experiment yet; submit one with `overproof submit SPEC`")
    return newest[0].experiment_id


def _job_id(repository: ResultsRepository, text: str) -> JobId:
    """The job that a person typed, or that carries the unit that a person typed."""
    from overproof.core.ids import JobId, UnitId, is_unit_id
    from overproof.errors import NotFound

    if is_unit_id(text):
        return repository.carrier(UnitId(text))
    if not text.startswith("job-"):
        raise NotFound(
            f"{text!r} is no id; those of experiments begin with exp-, of jobs with job-, of "
            "units with dst-, trn- or atk-"
        )
    return repository.job(JobId(text)).job_id


# ---- showing ---------------------------------------------------------------------------------


def _show_all(repository: ResultsRepository, limit: int, *, as_json: bool) -> None:
    experiments = repository.experiments(limit=limit)
    kinds = repository.kind_status()
    workers = repository.workers(SEEN_LATELY_S)
    if as_json:
        print_json({"experiments": experiments, "kinds": kinds, "workers": workers})
        return
    print_table(
        ["experiment", "name", "created (UTC)", "priority", "jobs", "state"],
        [
            (
                each.experiment_id,
                each.name,
                moment(each.created_at),
                each.priority,
                counts(each),
                "cancelled" if each.cancelled else "ended" if each.is_finished else "under way",
            )
            for each in experiments
        ],
        numbers={"priority"},
    )
    print_table(
        ["kind", "ready", "running", "workers", "claims"],
        [
            (
                each.kind,
                each.ready,
                each.running,
                sum(worker.kind == each.kind for worker in workers),
                "paused"
                if each.paused
                else f"stopped after {each.failures_in_a_row} failures in a row"
                if each.breaker_open
                else "open",
            )
            for each in kinds
        ],
        numbers={"ready", "running", "workers"},
    )


def _show_experiment(
    repository: ResultsRepository, text: str, limit: int, *, as_json: bool
) -> None:
    experiment_id = _experiment_id(repository, text)
    experiment = repository.experiment(experiment_id)
    jobs = repository.jobs(experiment_id, limit=limit)
    if as_json:
        print_json({"experiment": experiment, "jobs": jobs})
        return
    say(f"{experiment.name}: {counts(experiment)}")
    print_table(
        ["job", "kind", "state", "what", "progress", "attempt", "owner", "why"],
        [
            (
                job.job_id,
                job.kind,
                job.state,
                job.label,
                _percent_done(job),
                job.attempt,
                job.owner,
                job.error or (job.blocked_by and f"blocked by {job.blocked_by}"),
            )
            for job in jobs
        ],
        numbers={"progress", "attempt"},
    )
    if len(jobs) < experiment.total:
        say(f"{experiment.total - len(jobs)} more; raise --limit")


def _show_job(repository: ResultsRepository, job_id: JobId, *, as_json: bool) -> None:
    job = repository.job(job_id)
    spec = repository.job_spec(job_id)
    attempts = repository.attempts(job_id)
    if as_json:
        print_json({"job": job, "spec": spec, "attempts": attempts})
        return
    say(f"{job.job_id}: {job.label}")
    say(f"{job.kind}, {job.state.lower()}, {job.units} units, priority {job.priority}")
    if job.blocked_by:
        say(f"blocked by {job.blocked_by}")
    print_table(
        ["attempt", "owner", "started (UTC)", "ended (UTC)", "outcome", "why"],
        [
            (
                each.attempt,
                each.owner,
                moment(each.started_at),
                moment(each.ended_at),
                each.outcome,
                each.failure and each.failure.summary,
            )
            for each in attempts
        ],
        numbers={"attempt"},
    )
    if attempts and attempts[-1].failure is not None:
        say(attempts[-1].failure.traceback)


def _percent_done(job: JobView) -> str | None:
    if job.state is not JobState.RUNNING or job.progress is None or not job.progress.total:
        return None
    return f"{100 * job.progress.step / job.progress.total:.0f} %"
