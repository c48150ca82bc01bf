"""The schema: the same from the migrations as from the tables, however often it is made."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, make_url, text
from sqlalchemy.exc import ProgrammingError

from overproof.core.states import JobKind
from overproof.errors import DatabaseUnavailable, NotFound
from overproof.results.engine import create_engine
from overproof.results.migrate import is_migrated, migrate, newest_revision, revision_of
from overproof.results.repository import ResultsRepository
from overproof.results.tables import metadata
from tests.databases import fresh_postgres


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(
    request: pytest.FixtureRequest, tmp_path: Path, server_url: Callable[[str], str]
) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/results.db"
    else:
        with fresh_postgres(server_url("POSTGRES")) as url:
            yield url


def test_migrations_lead_to_the_tables_of_the_code(empty_url: str) -> None:
    engine = create_engine(empty_url)
    migrate(engine)

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        difference = compare_metadata(context, metadata)
        checks = {check["name"] for check in inspect(connection).get_check_constraints("jobs")}
    engine.dispose()

    assert difference == []
    assert checks == {"ck_jobs_kind", "ck_jobs_state", "ck_jobs_lease"}


def test_migrating_again_keeps_what_is_there(empty_url: str) -> None:
    engine = create_engine(empty_url)
    migrate(engine)
    ResultsRepository(engine).pause(JobKind.TRAIN)

    migrate(engine)

    paused = [status.kind for status in ResultsRepository(engine).kind_status() if status.paused]
    engine.dispose()
    assert paused == [JobKind.TRAIN]


def test_many_may_migrate_at_once(empty_url: str) -> None:
    engines = [create_engine(empty_url) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, engines))

    with engines[0].connect() as connection:
        revisions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        assert list(revisions) == [newest_revision()]
        wanted = connection.execute(text("SELECT kind, wanted FROM jobs_wanted")).all()
    for engine in engines:
        engine.dispose()
    assert sorted(tuple(row) for row in wanted) == [("attack", 0), ("distill", 0), ("train", 0)]


def test_database_that_was_not_migrated_is_unavailable(empty_url: str) -> None:
    engine = create_engine(empty_url)

    with pytest.raises(DatabaseUnavailable, match="check that it runs and was migrated"):
        ResultsRepository(engine).experiments()
    engine.dispose()


def test_schema_that_is_newer_than_the_code_stays_as_it_is(empty_url: str) -> None:
    engine = create_engine(empty_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("DROP VIEW jobs_wanted"))

    migrate(engine)

    with engine.connect() as connection:
        views, revision = inspect(connection).get_view_names(), revision_of(connection)
    migrated = is_migrated(engine)
    engine.dispose()
    assert (views, revision, migrated) == ([], "9999", True)


def test_a_database_counts_as_migrated_once_it_is(empty_url: str) -> None:
    engine = create_engine(empty_url)

    before = is_migrated(engine)
    migrate(engine)

    assert (before, is_migrated(engine)) == (False, True)
    engine.dispose()


@pytest.mark.postgres
def test_reader_may_read_what_is_wanted_and_nothing_else(server_url: Callable[[str], str]) -> None:
    role = f"reader_{secrets.token_hex(4)}"
    with fresh_postgres(server_url("POSTGRES")) as url:
        engine = create_engine(url)
        with pytest.raises(NotFound, match=role):
            migrate(engine, reader=role)
        try:
            with engine.begin() as connection:
                connection.execute(text(f"CREATE ROLE {role} LOGIN"))
            migrate(engine, reader=role)
            migrate(engine, reader=role)

            reading = create_engine(make_url(url).set(username=role).render_as_string(False))
            with reading.connect() as connection:
                found = connection.execute(text("SELECT kind FROM jobs_wanted")).scalars().all()
            with reading.connect() as connection, pytest.raises(ProgrammingError, match="denied"):
                connection.execute(text("SELECT * FROM jobs"))
            reading.dispose()
        finally:
            with engine.begin() as connection:
                connection.execute(text(f"DROP OWNED BY {role}"))
                connection.execute(text(f"DROP ROLE {role}"))
            engine.dispose()
    assert sorted(found) == sorted(JobKind)


def test_numbers_that_were_written_before_comparisons_stay(empty_url: str) -> None:
    engine = create_engine(empty_url)
    values = {
        "subject": "grp-1",
        "metric": "clean-accuracy",
        "slice": "",
        "group_id": "grp-1",
        "scope": "distilled-set",
        "value": 0.5,
        "unit": "fraction",
        "present": 1,
        "expected": 1,
    }
    columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "overproof.results:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.execute(text("INSERT INTO groups (id, body) VALUES ('grp-1', '{}')"))
        connection.execute(text(f"INSERT INTO metric_values ({columns}) VALUES ({places})"), values)

    migrate(engine)

    (row,) = ResultsRepository(engine).metrics(["grp-1"])
    engine.dispose()
    assert (row.value, row.present, row.low) == (0.5, 1, None)
