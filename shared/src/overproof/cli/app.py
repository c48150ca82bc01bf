"""All commands in one place, and how errors become exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from overproof.cli import assets, control, doctor, experiments, imports, jobs, plugins, results
from overproof.cli.output import FAILED, WRONG_USE, say, warn
from overproof.errors import (
    InvalidData,
    InvalidKey,
    InvalidSpec,
    NotFound,
    OverproofError,
    SettingsError,
    UnknownPlugin,
    redact,
)

_WRONG_USE = (InvalidSpec, UnknownPlugin, NotFound, SettingsError, InvalidData, InvalidKey)


class _Group(TyperGroup):
    """Says an expected error in words, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OverproofError as error:
            warn(f"overproof: {redact(str(error))}")
            raise typer.Exit(WRONG_USE if isinstance(error, _WRONG_USE) else FAILED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: drawing boxes takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from overproof import __version__

        say(f"overproof {__version__}")
        raise typer.Exit


@app.callback()
def overproof(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Proof-test distilled data sets: distil, train, attack, rank."""


for _command in (
    experiments.plan,
    experiments.submit,
    experiments.run,
    jobs.status,
    jobs.watch,
    jobs.cancel,
    jobs.retry,
    control.pause,
    control.resume,
    control.migrate,
    results.leaderboard,
    results.report,
    results.dashboard,
    imports.export,
    doctor.doctor,
):
    app.command()(_command)

app.command("import")(imports.import_set)

app.add_typer(control.dead_letters, name="dead-letters")
app.add_typer(assets.data, name="data")
app.add_typer(assets.weights, name="weights")
app.add_typer(plugins.app, name="plugins")


def main() -> None:
    """Run the command line."""
    app()
