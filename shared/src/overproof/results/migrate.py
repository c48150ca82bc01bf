"""Brings a database to the newest schema; safe when many processes do it at once."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from overproof.core.retry import DEFAULT_RETRY, RetryPolicy
from overproof.errors import NotFound
from overproof.results.engine import (
    MIGRATION_LOCK,
    Database,
    Transaction,
    database_clock,
    switch_to_wal,
)
from overproof.results.predicates import jobs_wanted

_SCRIPTS = "overproof.results:migrations"


def migrate(engine: Engine, retry: RetryPolicy = DEFAULT_RETRY, *, reader: str = "") -> None:
    """Create or upgrade all tables, and the view `jobs_wanted(kind, wanted)`.

    All in one transaction: a process that dies half-way leaves the old schema. Whoever comes
    second waits, and finds nothing to do. A schema that is newer than this code stays as it is:
    migrations only add until no older version runs, so that a version can be rolled back alone.

    Args:
        engine: from `create_engine`.
        retry: the policy that workers use; the view counts by it.
        reader: role of a Postgres that is given the right to read the view; it must exist.

    Raises:
        DatabaseUnavailable: the database does not answer.
        NotFound: it has no role `reader`; nothing has changed.
    """
    if engine.dialect.name == "sqlite":
        switch_to_wal(engine)
    Database(engine).write(lambda tx: _upgrade(tx, retry, reader))


def is_migrated(engine: Engine) -> bool:
    """Whether the schema is this version's or a newer one.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """
    return Database(engine).read(lambda tx: _age(tx.connection) >= 0)


def newest_revision() -> str:
    """The revision that `migrate` brings a database to."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def revision_of(connection: Connection) -> str | None:
    """The revision of the database, None before the first migration."""
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    return config


def _age(connection: Connection) -> int:
    """Below 0: the schema is older than this code; 0: the same; above: newer."""
    revision = revision_of(connection) or ""  # they are numbers of four digits
    return (revision > newest_revision()) - (revision < newest_revision())


def _upgrade(tx: Transaction, retry: RetryPolicy, reader: str) -> None:
    tx.lock_name(MIGRATION_LOCK)
    if _age(tx.connection) <= 0:
        config = _config()
        config.attributes["connection"] = tx.connection
        command.upgrade(config, "head")
        _create_view(tx, retry)
    if reader and tx.is_postgres:
        _let_read(tx, reader)


def _create_view(tx: Transaction, retry: RetryPolicy) -> None:
    """The view is no data, so it is written anew each time and never falls behind the code."""
    query = jobs_wanted(database_clock(tx.connection.engine), retry.max_attempts).compile(
        tx.connection, compile_kwargs={"literal_binds": True}
    )
    if tx.is_postgres:
        # Not dropped: the rights of read-only roles on it stay.
        tx.execute(text(f"CREATE OR REPLACE VIEW jobs_wanted AS {query}"))
    else:
        tx.execute(text("DROP VIEW IF EXISTS jobs_wanted"))
        tx.execute(text(f"CREATE VIEW jobs_wanted AS {query}"))


def _let_read(tx: Transaction, role: str) -> None:
    known = text("SELECT 1 FROM pg_roles WHERE rolname = :role").bindparams(role=role)
    if tx.execute(known).first() is None:
        raise NotFound(f"the database has no role {role!r}; create it (CREATE ROLE … LOGIN)")
    name = tx.connection.dialect.identifier_preparer.quote(role)
    tx.execute(text(f"GRANT SELECT ON jobs_wanted TO {name}"))
