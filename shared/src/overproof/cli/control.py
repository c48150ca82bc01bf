"""Steering the cluster: kinds of job on and off, messages that nobody could read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from overproof.cli.backends import open_backends, open_repository
from overproof.cli.output import JsonOption, moment, print_json, print_table, say, warn
from overproof.core.clock import Clock
from overproof.core.states import JobKind
from overproof.errors import DatabaseUnavailable, redact

Kind = Annotated[JobKind, typer.Argument(help="Kind of job.")]
_ASK_AGAIN_S = 1.0
LetterId = Annotated[int, typer.Argument(help="Number from `overproof dead-letters list`.")]


def pause(kind: Kind) -> None:
    """Start no more jobs of a kind; running ones go on."""
    with open_repository() as repository:
        repository.pause(kind)
    say(f"{kind} is paused; `overproof resume {kind}` goes on")


def resume(kind: Kind) -> None:
    """Let jobs of a kind start again; closes the breaker that failures opened."""
    with open_repository() as repository:
        repository.resume(kind)
    say(f"{kind} goes on")


def migrate(
    wait: Annotated[
        bool, typer.Option("--wait", help="Change nothing; return once another process did it.")
    ] = False,
    reader: Annotated[
        str, typer.Option(help="Role of Postgres that may read the view jobs_wanted afterwards.")
    ] = "",
) -> None:
    """Bring the database to the schema of this version; run it once before the services start."""
    from overproof.core.clock import SystemClock
    from overproof.results.engine import create_engine
    from overproof.results.migrate import is_migrated, newest_revision
    from overproof.results.migrate import migrate as bring_up
    from overproof.runtime.settings import Settings

    settings = Settings.from_env()
    engine = create_engine(settings.database)
    try:
        if wait:
            wait_until_migrated(lambda: is_migrated(engine), SystemClock())
        else:
            bring_up(engine, settings.retry, reader=reader)
    finally:
        engine.dispose()
    say(f"the database has schema {newest_revision()} or a newer one")


def wait_until_migrated(is_migrated: Callable[[], bool], clock: Clock) -> None:
    """Return once the schema is there; a database that does not answer is asked again.

    Args:
        is_migrated: asks the database; may raise `DatabaseUnavailable`.
        clock: waits between two questions.
    """
    said = ""
    while True:
        try:
            if is_migrated():
                return
            found = "the schema is older than this version"
        except DatabaseUnavailable as error:
            found = redact(str(error))
        if found != said:  # once, not every second for hours
            warn(f"waiting: {found}; `overproof migrate` brings it up to date")
            said = found
        clock.sleep(_ASK_AGAIN_S)


dead_letters = typer.Typer(no_args_is_help=True, help="Messages that nobody could use.")


@dead_letters.command("list")
def list_dead_letters(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, newest first."""
    with open_repository() as repository:
        letters = repository.dead_letters(limit=limit)
    if as_json:
        print_json(letters)
        return
    print_table(
        ["number", "topic", "received", "bytes", "job", "reason", "replayed"],
        [
            (
                letter.dead_letter_id,
                letter.topic,
                moment(letter.received_at),
                letter.size_bytes,
                letter.job_id,
                letter.reason,
                "yes" if letter.replayed_at else "no",
            )
            for letter in letters
        ],
        numbers={"number", "bytes"},
    )


@dead_letters.command("replay")
def replay_dead_letter(dead_letter_id: LetterId) -> None:
    """Publish the message once more, byte for byte, on the topic that it came from."""
    from overproof.artifacts import keys
    from overproof.bus.topics import Topic
    from overproof.errors import ArtifactMissing

    with open_backends() as (_, backends):
        letter = backends.repository.dead_letter(dead_letter_id)
        raw = backends.store.read(keys.dead_letter(letter.sha256))
        if raw is None:
            raise ArtifactMissing(
                f"the bytes of dead letter {dead_letter_id} are not in the store; "
                f"`overproof dead-letters drop {dead_letter_id}` removes the entry"
            )
        # Twice is harmless: whoever dies between the two steps replays it again.
        backends.bus.publish_raw(Topic(letter.topic), raw, key=letter.job_id or "")
        backends.repository.mark_replayed(dead_letter_id)
    say(f"published {letter.size_bytes} bytes to {letter.topic}")


@dead_letters.command("drop")
def drop_dead_letter(dead_letter_id: LetterId) -> None:
    """Forget a dead letter."""
    with open_repository() as repository:
        repository.drop_dead_letter(dead_letter_id)
    say(f"dropped dead letter {dead_letter_id}")
