"""Opens the back-ends that the environment names, for the time of one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overproof.results.repository import ResultsRepository
    from overproof.runtime.settings import Settings
    from overproof.runtime.wiring import Backends


@contextmanager
def open_backends() -> Iterator[tuple[Settings, Backends]]:
    """Settings and back-ends; the back-ends are closed at the end.

    Raises:
        SettingsError: an environment variable with a value that cannot be used.
        DatabaseUnavailable: the database does not answer.
    """
    from overproof.runtime.settings import Settings
    from overproof.runtime.wiring import Backends

    settings = Settings.from_env()
    with Backends.from_settings(settings) as backends:
        yield settings, backends


@contextmanager
def open_repository() -> Iterator[ResultsRepository]:
    """The database alone, for commands that only look or steer."""
    with open_backends() as (_, backends):
        yield backends.repository
