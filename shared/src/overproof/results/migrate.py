"""Brings a database to the newest schema; safe when many processes do it at once."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from overproof.core.retry import DEFAULT_RETRY, RetryPolicy
from overproof.results.engine import (
    MIGRATION_LOCK,
    Database,
    Transaction,
    database_clock,
    switch_to_wal,
)
from overproof.results.predicates import jobs_wanted

_SCRIPTS = "overproof.results:migrations"


def migrate(engine: Engine, retry: RetryPolicy = DEFAULT_RETRY) -> None:
    """Create or upgrade all tables, and the view `jobs_wanted(kind, wanted)`.

    All in one transaction: a process that dies half-way leaves the old schema. Whoever comes
    second waits, and finds nothing to do.

    Args:
        engine: from `create_engine`.
        retry: the policy that workers use; the view counts by it.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """
    if engine.dialect.name == "sqlite":
        switch_to_wal(engine)
    Database(engine).write(lambda tx: _upgrade(tx, retry))


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


def _upgrade(tx: Transaction, retry: RetryPolicy) -> None:
    tx.lock_name(MIGRATION_LOCK)
    config = _config()
    config.attributes["connection"] = tx.connection
    command.upgrade(config, "head")
    _create_view(tx, retry)


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
