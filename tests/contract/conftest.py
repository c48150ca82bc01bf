"""Empty results databases of both kinds, each migrated once a session and then only emptied."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from overproof.core.clock import ManualClock
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from overproof.results.tables import kind_controls, metadata
from tests.databases import fresh_postgres


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("migrated") / "results.db"
    engine = create_engine(f"sqlite:///{file}")
    migrate(engine)
    engine.dispose()
    return file


@pytest.fixture(scope="session")
def migrated_postgres(server_url: Callable[[str], str]) -> Iterator[str]:
    with fresh_postgres(server_url("POSTGRES")) as url:
        engine = create_engine(url)
        migrate(engine)
        engine.dispose()
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def results_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated database without rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "results.db")
        yield f"sqlite:///{tmp_path}/results.db"
        return
    url: str = request.getfixturevalue("migrated_postgres")
    yield url
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not kind_controls:
                connection.execute(table.delete())
        reset = {"paused": False, "breaker_open": False, "failures_in_a_row": 0}
        connection.execute(update(kind_controls).values(reset))
    engine.dispose()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def repository(results_url: str, clock: ManualClock) -> Iterator[ResultsRepository]:
    """A repository whose time is `clock`."""
    with closing(ResultsRepository(create_engine(results_url), now=clock.now)) as opened:
        yield opened


@pytest.fixture
def live(results_url: str) -> Iterator[ResultsRepository]:
    """A repository that goes by the clock of the database."""
    with closing(ResultsRepository(create_engine(results_url))) as opened:
        yield opened
