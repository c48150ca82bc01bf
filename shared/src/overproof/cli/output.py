"""What commands print: tables for people, JSON for programs, errors on one line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

FAILED = 1  # exit code: work failed, or a back-end does not answer
WRONG_USE = 2  # exit code: what was asked for cannot be done; wrong options give it too
INTERRUPTED = 130  # exit code: Ctrl-C, as shells have it

# Tables are cut at the width of a terminal; a file or a pipe has none, so it gets a wide one.
_FILE_WIDTH = 240

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def console() -> Console:
    """Where tables go: standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, highlight=False)


def say(text: str) -> None:
    """Print a line for people."""
    typer.echo(text)


def warn(text: str) -> None:
    """Print a line that must not mix with data: to standard error."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print `value` as JSON; dataclasses and models become objects."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[str] = (),
    title: str | None = None,
) -> None:
    """Print a table; columns whose header is in `numbers` are set right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right = set(numbers)
    heading = None if title is None else Text(title)
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left")
    for header in headers:
        if header in right:
            table.add_column(header, justify="right", no_wrap=True)
        else:
            table.add_column(header, overflow="fold")
    for row in rows:
        # Text, since a label such as `pgd-linf[steps=20]` would be read as markup.
        table.add_row(*[Text(_cell(value)) for value in row])
    console().print(table)


def moment(seconds: float | None) -> str | None:
    """A time for tables, in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plain(value: Any) -> Any:
    """`value` as JSON knows it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(item) for item in items]
    return value


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
