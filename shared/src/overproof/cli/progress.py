"""Shows how far an experiment is: live bars on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from overproof.core.states import TERMINAL, JobKind, JobState

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from overproof.core.ids import ExperimentId
    from overproof.results.repository import ResultsRepository
    from overproof.results.views import ExperimentView, JobView

_BARS = 12  # running jobs that are shown one by one
_SPEED = {"steps_per_s", "seconds_left"}  # the bar says it itself


@contextmanager
def show_progress(
    repository: ResultsRepository, experiment_id: ExperimentId, tell: Callable[[str], None]
) -> Iterator[Callable[[], bool]]:
    """A function that brings what is shown up to date, and says whether the experiment ended.

    Args:
        repository: asked each time.
        experiment_id: what to show.
        tell: prints a line where there is no terminal for bars.
    """
    with _open_display(tell) as display:

        def update() -> bool:
            experiment = repository.experiment(experiment_id)
            running = repository.jobs(experiment_id, JobState.RUNNING, limit=_BARS)
            # Only an experiment that stands still is looked at closer: who watches it must not
            # wait for something that starts when somebody says so.
            idle = not running and not experiment.is_finished
            display.show(experiment, running, _held_back(repository, experiment_id) if idle else ())
            return experiment.is_finished

        yield update


def counts(experiment: ExperimentView) -> str:
    """How many jobs are in each state: `3 succeeded, 1 running`."""
    parts = [
        f"{experiment.jobs[state]} {state.lower()}"
        for state in JobState
        if experiment.jobs.get(state)
    ]
    if experiment.blocked:
        parts.append(f"{experiment.blocked} of them blocked")
    return ", ".join(parts) or "no jobs"


def _held_back(repository: ResultsRepository, experiment_id: ExperimentId) -> Sequence[JobKind]:
    return [
        status.kind
        for status in repository.kind_status()
        if status.is_held and repository.jobs(experiment_id, JobState.READY, status.kind, limit=1)
    ]


def _headline(experiment: ExperimentView, held_back: Sequence[JobKind]) -> str:
    remedies = [f"; {kind} jobs are held back, `overproof resume {kind}`" for kind in held_back]
    return counts(experiment) + "".join(remedies)


class _Display(Protocol):
    def show(
        self,
        experiment: ExperimentView,
        running: Sequence[JobView],
        held_back: Sequence[JobKind],
    ) -> None: ...


@contextmanager
def _open_display(tell: Callable[[str], None]) -> Iterator[_Display]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(tell)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total}"),
        TimeRemainingColumn(),
    )
    # Steps of one job take about equally long, so its whole run tells the time left.
    with Progress(*columns, console=console, speed_estimate_period=3600) as progress:
        yield _Bars(progress)


class _Bars:
    """A bar for the jobs of the experiment and one for each that runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._all: TaskID | None = None
        self._running: dict[str, TaskID] = {}

    def show(
        self,
        experiment: ExperimentView,
        running: Sequence[JobView],
        held_back: Sequence[JobKind],
    ) -> None:
        if self._all is None:
            self._all = self._progress.add_task("", total=experiment.total)
        self._progress.update(
            self._all,
            description=f"{experiment.name}: {_headline(experiment, held_back)}",
            completed=_ended(experiment),
            total=experiment.total,
        )
        for job_id in set(self._running) - {job.job_id for job in running}:
            self._progress.remove_task(self._running.pop(job_id))
        for job in running:
            if job.progress is None:
                continue
            if job.job_id not in self._running:
                self._running[job.job_id] = self._progress.add_task("")
            self._progress.update(
                self._running[job.job_id],
                description=_line(job),
                completed=job.progress.step,
                total=job.progress.total,
            )


class _Lines:
    """A line whenever the number of jobs in a state has changed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = ""

    def show(
        self,
        experiment: ExperimentView,
        running: Sequence[JobView],
        held_back: Sequence[JobKind],
    ) -> None:
        ended = f"{_ended(experiment)} of {experiment.total} jobs ended"
        line = f"{ended}: {_headline(experiment, held_back)}"
        if line != self._last:
            self._last = line
            self._tell(line)


def _ended(experiment: ExperimentView) -> int:
    return sum(experiment.jobs.get(state, 0) for state in TERMINAL)


def _line(job: JobView) -> str:
    scalars = job.progress.scalars if job.progress is not None else {}
    shown = [pair for pair in sorted(scalars.items()) if pair[0] not in _SPEED][:2]
    numbers = " ".join(f"{name} {value:.3g}" for name, value in shown)
    return f"  {job.kind} {job.label} {numbers}".rstrip()
