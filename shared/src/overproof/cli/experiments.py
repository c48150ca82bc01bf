"""From a spec to numbers: plan, submit, run."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overproof.cli.backends import open_backends, open_repository
from overproof.cli.output import (
    FAILED,
    INTERRUPTED,
    JsonOption,
    plain,
    print_json,
    print_table,
    say,
    warn,
)
from overproof.cli.progress import show_progress
from overproof.core.clock import SystemClock
from overproof.core.states import JobKind, JobState, UnitState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overproof.core.ids import ExperimentId, JobId, UnitId
    from overproof.experiments.planner import ExperimentPlan
    from overproof.results.repository import ResultsRepository
    from overproof.results.views import JobView, Submitted, UnitStatus
    from overproof.runtime.wiring import Backends

SpecFile = Annotated[Path, typer.Argument(help="Experiment as YAML or JSON.", show_default=False)]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Also start jobs again that have FAILED before.")
]

# Workers tell that they are alive every few seconds, so a minute of silence means that none is.
SEEN_LATELY_S = 60.0

_MANY = 1_000_000


def plan(spec: SpecFile, as_json: JsonOption = False) -> None:
    """Show what an experiment would run, and what is done already."""
    from overproof.core.ids import UnitId
    from overproof.experiments.planner import batch

    with open_repository() as repository:
        planned = _plan(spec, repository)
        known = repository.unit_status(UnitId(unit.id) for unit in planned.units)
    missing = [unit for unit in planned.units if unit.id not in known]
    jobs = batch(missing)
    if as_json:
        units = [plain(unit) | {"state": _state(unit.id, known)} for unit in planned.units]
        print_json({"name": planned.spec.name, "units": units, "jobs": jobs})
        return
    states = Counter((unit.kind, _state(unit.id, known)) for unit in planned.units)
    print_table(
        ["kind", "units", "done", "under way", "new", "new jobs"],
        [
            (
                kind,
                sum(count for (of_kind, _), count in states.items() if of_kind is kind),
                states[kind, "done"],
                states[kind, "under way"],
                states[kind, "new"],
                sum(job.kind is kind for job in jobs),
            )
            for kind in JobKind
        ],
        numbers={"units", "done", "under way", "new", "new jobs"},
    )


def submit(spec: SpecFile, retry_failed: RetryFailed = False, as_json: JsonOption = False) -> None:
    """Put an experiment into the queue; workers elsewhere do it."""
    with open_backends() as (_, backends):
        submitted = _submit(spec, backends, retry_failed=retry_failed)
        idle = _kinds_without_worker(submitted.experiment_id, backends.repository)
    if as_json:
        print_json(submitted)
    else:
        say(_sentence(submitted))
        say(f"follow it with `overproof watch {submitted.experiment_id}`")
    for kind in idle:
        warn(
            f"no {kind} worker was seen in the last {SEEN_LATELY_S:.0f} s; start one, or do the "
            "work here with `overproof run`"
        )


def run(
    spec: Annotated[
        Path | None,
        typer.Argument(help="Experiment; without it, whatever is ready.", show_default=False),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the results as a page to this file.")
    ] = None,
    retry_failed: RetryFailed = False,
    as_json: JsonOption = False,
) -> None:
    """Do the work in this process and its children, then show the leaderboard."""
    from overproof.cli.results import show_leaderboard, show_rankings, write_report
    from overproof.local.runner import LocalRunner

    tell = warn if as_json else say
    with open_backends() as (settings, backends):
        repository = backends.repository
        experiment_id = None
        if spec is not None:
            submitted = _submit(spec, backends, retry_failed=retry_failed)
            experiment_id = submitted.experiment_id
            tell(_sentence(submitted))
        failed_before = _failed(repository, None)
        with ExitStack() as stack:
            update = None
            if experiment_id is not None:
                update = stack.enter_context(show_progress(repository, experiment_id, tell))
            try:
                LocalRunner(settings, backends).run_until_finished(
                    experiment_id, on_progress=update
                )
            except KeyboardInterrupt:
                stack.close()
                warn("stopped; nothing is lost, `overproof run` goes on where it was")
                raise typer.Exit(INTERRUPTED) from None
        failed = _failed(repository, experiment_id)
        held = [kind for kind in repository.kind_status() if kind.ready and kind.is_held]
        if experiment_id is None:
            failed = {key: job for key, job in failed.items() if key not in failed_before}
        show_leaderboard(repository, experiment_id, as_json=as_json)
        if not as_json:
            show_rankings(repository, experiment_id)
        if report is not None:
            write_report(repository, experiment_id, report)
            tell(f"report: {report}")
        tell("see more with `overproof dashboard`")
    for job in failed.values():
        warn(f"{job.job_id} failed ({job.label}): {job.error}")
    for kind in held:
        warn(f"{kind.ready} {kind.kind} jobs are held back; `overproof resume {kind.kind}`")
    if failed:
        warn("look closer with `overproof status JOB`; start them again with `overproof retry JOB`")
    if failed or held:
        raise typer.Exit(FAILED)


def _plan(spec: Path, repository: ResultsRepository) -> ExperimentPlan:
    from overproof.core.spec import ExperimentSpec
    from overproof.experiments.planner import plan as make_plan

    def newest_version(name: str) -> str | None:
        asset = repository.asset("datasets", name)
        return None if asset is None else asset.version

    return make_plan(ExperimentSpec.read(spec), newest_version, repository.asset)


def _submit(spec: Path, backends: Backends, *, retry_failed: bool) -> Submitted:
    from overproof.experiments.submit import submit as put_into_queue

    return put_into_queue(
        _plan(spec, backends.repository),
        repository=backends.repository,
        bus=backends.bus,
        clock=SystemClock(),
        retry_failed=retry_failed,
    )


def _sentence(submitted: Submitted) -> str:
    text = (
        f"{submitted.experiment_id}: {submitted.created} new jobs, {submitted.linked} known ones, "
        f"{submitted.done_units} units done already"
    )
    if submitted.failed:
        text += (
            f"; {len(submitted.failed)} known ones have FAILED, --retry-failed starts them again"
        )
    return text


def _state(unit_id: str, known: Mapping[UnitId, UnitStatus]) -> str:
    from overproof.core.ids import UnitId

    status = known.get(UnitId(unit_id))
    if status is None:
        return "new"
    if status.state is UnitState.DONE:
        return "done"
    return "under way" if status.job_state.is_live else status.job_state.lower()


def _kinds_without_worker(
    experiment_id: ExperimentId, repository: ResultsRepository
) -> list[JobKind]:
    """Kinds of job that the experiment waits for and no live worker does."""
    alive = {worker.kind for worker in repository.workers(SEEN_LATELY_S)}
    return [
        kind
        for kind in JobKind
        if kind not in alive
        and any(
            repository.jobs(experiment_id, state, kind, limit=1)
            for state in (JobState.READY, JobState.WAITING)
        )
    ]


def _failed(
    repository: ResultsRepository, experiment_id: ExperimentId | None
) -> dict[JobId, JobView]:
    jobs = repository.jobs(experiment_id, JobState.FAILED, limit=_MANY)
    return {job.job_id: job for job in jobs}
