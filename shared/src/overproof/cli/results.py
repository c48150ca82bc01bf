"""Numbers for people: the leaderboard, the page, the dashboard."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overproof.cli.backends import open_repository
from overproof.cli.output import WRONG_USE, JsonOption, print_json, print_table, say, warn
from overproof.core.clock import SystemClock
from overproof.core.semantics import Semantics

if TYPE_CHECKING:
    from overproof.core.ids import ExperimentId
    from overproof.report.beside import Beside
    from overproof.report.page import Provenance
    from overproof.results.repository import ResultsRepository

Of = Annotated[
    str | None,
    typer.Argument(metavar="[EXPERIMENT]", help="Only its groups.", show_default=False),
]
SemanticsOption = Annotated[
    Semantics, typer.Option(help="Which samples count as robust; S2 is the worst case.")
]


WeightOption = Annotated[
    float, typer.Option(min=0, max=1, help="Weight of IOR against HLR in DDRS.")
]
GammaOption = Annotated[
    float, typer.Option(min=0, max=1, help="Weight of training with augmentation in ARS.")
]


def leaderboard(
    experiment: Of = None,
    semantics: SemanticsOption = Semantics.S2,
    ranking: Annotated[
        bool, typer.Option("--ranking", help="Only the ranking of distilled sets.")
    ] = False,
    weight: WeightOption = 0.5,
    gamma: GammaOption = 0.5,
    as_json: JsonOption = False,
) -> None:
    """Show clean accuracy, robust accuracy and drop rate of every group, and the rankings."""
    with open_repository() as repository:
        experiment_id = _checked(repository, experiment)
        if not ranking:
            show_leaderboard(repository, experiment_id, semantics=semantics, as_json=as_json)
        if ranking or not as_json:
            show_rankings(
                repository,
                experiment_id,
                semantics=semantics,
                weight=weight,
                gamma=gamma,
                as_json=as_json,
            )
        if not (ranking or as_json):
            show_published(repository, experiment_id)


def report(
    experiment: Of = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "report.html"
    ),
    semantics: SemanticsOption = Semantics.S2,
) -> None:
    """Write the results as one HTML file with tables, figures and data in it."""
    with open_repository() as repository:
        write_report(repository, _checked(repository, experiment), output, semantics=semantics)
    say(f"report: {output}")


def dashboard(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 8501,
    host: Annotated[str, typer.Option(help="Address it listens on.")] = "127.0.0.1",
    app: Annotated[
        Path | None, typer.Option(help="The dashboard's app.py.", show_default=False)
    ] = None,
) -> None:
    """Serve the dashboard until Ctrl-C; it reads the same settings as this command."""
    from importlib.util import find_spec

    script = app or _dashboard_script()
    if script is None or not script.is_file():
        warn("the dashboard's app.py was not found; name it with --app PATH")
        raise typer.Exit(WRONG_USE)
    if find_spec("streamlit") is None:
        warn("the dashboard needs streamlit; install what dashboard/pyproject.toml lists")
        raise typer.Exit(WRONG_USE)
    arguments = [
        "run",
        str(script),
        f"--server.port={port}",
        f"--server.address={host}",
        "--server.headless=true",  # else the first start asks for an e-mail address
        "--browser.gatherUsageStats=false",
    ]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", *arguments])


def show_leaderboard(
    repository: ResultsRepository,
    experiment_id: ExperimentId | None,
    *,
    semantics: Semantics = Semantics.S2,
    as_json: bool,
) -> None:
    """Print the leaderboard of one experiment or of all."""
    from overproof.report.standings import by_bench, standings, to_records
    from overproof.report.text import HEADERS, LEGEND, NUMBERS, breakers, cells, doubts, notes

    rows = standings(repository.leaderboard(experiment_id), semantics)
    if as_json:
        print_json(to_records(rows))
        return
    if not rows:
        say("no results yet")
        return
    for bench, members in by_bench(rows).items():
        print_table(HEADERS, [cells(row) for row in members], numbers=NUMBERS, title=bench)
    say(LEGEND)
    for note in notes(rows):
        say(f"* {note}")
    for doubt in doubts(rows):
        say(f"! {doubt}")
    for line in breakers(rows):
        say(line)


def show_rankings(
    repository: ResultsRepository,
    experiment_id: ExperimentId | None,
    *,
    semantics: Semantics = Semantics.S2,
    weight: float = 0.5,
    gamma: float = 0.5,
    as_json: bool = False,
) -> None:
    """Print the rankings of one experiment or of all; nothing where nothing is ranked."""
    from overproof.report import ranking
    from overproof.report.standings import standings

    rows = ranking.rankings(
        repository,
        standings(repository.leaderboard(experiment_id), semantics),
        experiment_id,
        weight=weight,
        gamma=gamma,
    )
    if as_json:
        print_json(ranking.to_records(rows))
        return
    for bench, members in ranking.by_bench(rows).items():
        print_table(ranking.HEADERS, ranking.cells(members), numbers=ranking.NUMBERS, title=bench)
    if rows:
        say(ranking.LEGEND)
    for line in ranking.differences(rows):
        say(f"ranked apart, since they differ in {line}")
    for note in ranking.notes(rows):
        say(f"* {note}")


def show_published(repository: ResultsRepository, experiment_id: ExperimentId | None) -> None:
    """Print measured numbers with their counterparts in papers; nothing where there are none."""
    from overproof.report import beside

    rows = _beside(repository, experiment_id)
    if rows:
        print_table(beside.HEADERS, beside.cells(rows), numbers=beside.NUMBERS)
        say(beside.LEGEND)


def _beside(repository: ResultsRepository, experiment_id: ExperimentId | None) -> list[Beside]:
    from overproof.report.beside import beside
    from overproof.report.standings import standings

    groups = repository.leaderboard(experiment_id)
    return beside(row for each in Semantics for row in standings(groups, each))


def write_report(
    repository: ResultsRepository,
    experiment_id: ExperimentId | None,
    output: Path,
    *,
    semantics: Semantics = Semantics.S2,
) -> None:
    """Write the page of one experiment, or of all, to the file `output`.

    Raises:
        InvalidData: the file cannot be written.
    """
    from overproof.errors import InvalidData
    from overproof.report.page import render_page
    from overproof.report.ranking import rankings
    from overproof.report.standings import standings

    title = "Overproof"
    if experiment_id is not None:
        title = f"{repository.experiment(experiment_id).name} – Overproof"
    rows = standings(repository.leaderboard(experiment_id), semantics)
    page = render_page(
        title,
        rows,
        _provenance(repository, experiment_id),
        generated_at=SystemClock().now(),
        ranked=rankings(repository, rows, experiment_id),
        published=_beside(repository, experiment_id),
    )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidData(f"{output} cannot be written: {error.strerror}") from None


def _provenance(repository: ResultsRepository, experiment_id: ExperimentId | None) -> Provenance:
    from overproof import __version__
    from overproof.report.page import Provenance

    if experiment_id is None:
        return Provenance(facts={"overproof": __version__})
    experiment = repository.experiment(experiment_id)
    units = repository.units(experiment_id)
    facts: dict[str, set[str]] = {}
    for job_id in sorted({unit.job_id for unit in units}):
        for attempt in repository.attempts(job_id)[-1:]:
            for name, value in attempt.facts.items():
                facts.setdefault(name, set()).add(str(value))
    shown = {name: ", ".join(sorted(values)) for name, values in sorted(facts.items())}
    return Provenance(
        facts={"overproof": __version__, "experiment": experiment_id, **shown},
        spec=experiment.spec,
        units=units,
    )


def _checked(repository: ResultsRepository, text: str | None) -> ExperimentId | None:
    from overproof.core.ids import ExperimentId

    return None if text is None else repository.experiment(ExperimentId(text)).experiment_id


def _dashboard_script() -> Path | None:
    """`dashboard/app.py` of the checkout that is worked in or that this package comes from."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        script = folder / "dashboard" / "app.py"
        if script.is_file():
            return script
    return None
