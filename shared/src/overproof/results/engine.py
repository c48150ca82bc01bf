"""Connections and transactions: what differs between SQLite and Postgres is here.

SQLite runs in WAL mode with transactions that we begin ourselves: `BEGIN IMMEDIATE` to write,
since a deferred transaction that turns into a writing one fails at once however long the busy
timeout is, and the driver's own begin loses updates in silence.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Double,
    Engine,
    Executable,
    Table,
    event,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy import exc as sql_errors
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url

from overproof.errors import DatabaseUnavailable, SettingsError, redact
from overproof.results.tables import jobs, metadata

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10
_STATEMENT_TIMEOUT_S = 60
_TRIES = 6
_PAUSE_S = 0.01  # of two that met, one went on: it only has to finish

# One lock for whatever changes many jobs at once: submitting, cancelling, sweeping.
_EXCLUSIVE_LOCK = 0x6F7665_7270_726F
_CLAIM_LOCK = _EXCLUSIVE_LOCK + 1
MIGRATION_LOCK = _EXCLUSIVE_LOCK + 2

_SERIALIZATION_FAILURE, _DEADLOCK = "40001", "40P01"
# A standby that was promoted away, and a schema that is not there yet: both pass.
_PASSING = {"25006", "42P01"}
_PASSWORDS = {"password", "sslpassword"}
# A SQLite file that is none, or is damaged.
_UNREADABLE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) AS double precision)",
}


def create_engine(url: str) -> Engine:
    """An engine with everything set that the repository relies on.

    Args:
        url: `sqlite:///PATH` or `postgresql+psycopg2://USER:PASSWORD@HOST:PORT/NAME`. The folder
            of a SQLite file is made if it is missing; it must not lie on a network file system.

    Raises:
        SettingsError: another database, its driver is not installed, or a password among the
            options, where messages would show it.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except sql_errors.ArgumentError:
        raise SettingsError(
            "the database URL cannot be read; write sqlite:///PATH or postgresql+psycopg2://…"
        ) from None
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise SettingsError("the database URL names no file; write sqlite:///PATH")
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        return _sqlite_engine(url)
    if backend == "postgresql":
        if not _PASSWORDS.isdisjoint(parsed.query):
            raise SettingsError(
                "the database URL has a password among its options; write USER:PASSWORD@HOST, or "
                "use PGPASSWORD or PGPASSFILE"
            )
        return _postgres_engine(url)
    raise SettingsError(
        f"database {redact(url)!r} is not supported; use sqlite:///PATH or postgresql+psycopg2://…"
    )


def _sqlite_engine(url: str) -> Engine:
    engine = sqlalchemy.create_engine(
        url,
        connect_args={
            "isolation_level": None,
            "timeout": BUSY_TIMEOUT_S,
            "check_same_thread": False,
        },
        json_serializer=to_json,
        max_overflow=20,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        # In WAL mode this keeps every commit across a crash of the process; only a power cut
        # may undo the last ones, and manifests and the sweep make up for those.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def switch_to_wal(engine: Engine) -> None:
    """Let readers and one writer of a SQLite file work side by side; kept in the file.

    The busy timeout does not hold for this statement, so others that do the same are waited for
    here.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.Error as error:  # a raw connection raises the driver's own
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise unavailable(engine, error) from error
        time.sleep(_PAUSE_S)


def _postgres_engine(url: str) -> Engine:
    try:
        return sqlalchemy.create_engine(
            url,
            pool_pre_ping=True,
            max_overflow=20,
            executemany_mode="values_plus_batch",
            json_serializer=to_json,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "keepalives_idle": 30,
                "application_name": "overproof",
                "options": f"-c statement_timeout={_STATEMENT_TIMEOUT_S}s"
                f" -c lock_timeout={_STATEMENT_TIMEOUT_S // 2}s"
                f" -c idle_in_transaction_session_timeout={_STATEMENT_TIMEOUT_S}s",
            },
        )
    except ImportError:
        raise SettingsError(
            f"the driver for {redact(url)!r} is not installed; install overproof[postgres]"
        ) from None


def to_json(value: Any) -> str:
    """JSON text; NaN and infinities become null, since Postgres refuses them."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=True)


def printable(line: str) -> str:
    """`line` without the one character that Postgres cannot store in a text."""
    return line.replace("\x00", "")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@dataclass(frozen=True)
class Transaction:
    """An open transaction, with the database's clock.

    Attributes:
        now: seconds since the epoch, by the database, at the start of each statement.
    """

    connection: Connection
    now: ColumnElement[float]

    @property
    def is_postgres(self) -> bool:
        """Whether rows and names can be locked one by one."""
        return self.connection.dialect.name == "postgresql"

    def execute(self, statement: Executable, rows: Any = None) -> CursorResult[Any]:
        """Run one statement, or one statement for many rows."""
        return self.connection.execute(statement, rows)

    def insert_many(self, table: Table, rows: list[dict[str, Any]], **same: Any) -> None:
        """Insert `rows` in few round trips; `same` are the columns that are equal in all."""
        if rows:
            self.execute(table.insert().values(same) if same else table.insert(), rows)

    def upsert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An insert that knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
        return postgresql.insert(table) if self.is_postgres else sqlite.insert(table)

    def lock_jobs(self, where: ColumnElement[bool]) -> None:
        """Keep others from moving these jobs until the end.

        Always in the order of ids, so that two transactions never wait for each other. What was
        decided by others is seen by the statements after this one. SQLite has one writer anyway.
        """
        if self.is_postgres:
            # With key_share, rows that refer to a locked one can be inserted meanwhile.
            found = select(jobs.c.id).where(where).order_by(jobs.c.id)
            self.execute(found.with_for_update(key_share=True))

    def refresh_statistics(self) -> None:
        """Let the planner know of many new rows.

        Until Postgres does it by itself, it takes tables for nearly empty that are not, and goes
        through them once for each job: a minute for 10,000 of them.
        """
        if self.is_postgres:
            self.execute(text(f"ANALYZE {', '.join(metadata.tables)}"))

    def lock_name(self, key: int) -> None:
        """Wait until no other transaction holds `key`; SQLite has one writer anyway."""
        if self.is_postgres:
            self.execute(text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=key))

    def lock_claims(self) -> None:
        """Let no other transaction claim until the end."""
        self.lock_name(_CLAIM_LOCK)


class Database:
    """Runs functions in transactions; safe to use from several threads.

    Args:
        engine: from `create_engine`.
        now: replaces the database's clock, for tests.

    `DatabaseUnavailable` is raised for whatever says that the server cannot be reached, is busy
    for too long, or has no tables yet. Functions run again after a deadlock, so that they have to
    be repeatable.
    """

    def __init__(self, engine: Engine, now: Callable[[], float] | None = None) -> None:
        self.engine = engine
        self._writer = engine.execution_options(writes=True)
        self._now = now
        self._server_clock = database_clock(engine)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work` in a transaction that writes nothing."""
        return self._run(self.engine, work)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work`, committed."""
        return self._run(self._writer, work)

    def write_alone(self, work: Callable[[Transaction], T]) -> T:
        """As `write`, with no other `write_alone` at the same time."""

        def locked(transaction: Transaction) -> T:
            transaction.lock_name(_EXCLUSIVE_LOCK)
            return work(transaction)

        return self.write(locked)

    def _run(self, engine: Engine, work: Callable[[Transaction], T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with engine.begin() as connection:
                    return work(Transaction(connection, self._clock()))
            except (sql_errors.DBAPIError, sql_errors.TimeoutError) as error:
                if tries_left and _is_conflict(error):
                    time.sleep(_PAUSE_S)
                    continue
                if is_unavailable(error):
                    raise unavailable(self.engine, error) from error
                raise
        raise AssertionError("the last try returns or raises")

    def _clock(self) -> ColumnElement[float]:
        if self._now is not None:
            return literal(self._now(), Double)
        return self._server_clock


def database_clock(engine: Engine) -> ColumnElement[float]:
    """SQL for seconds since the epoch at the start of the statement."""
    return literal_column(_NOW[engine.dialect.name], Double)


def unavailable(engine: Engine, error: Exception) -> DatabaseUnavailable:
    """`error` in our words, without the password of the URL."""
    where = engine.url.render_as_string(hide_password=True)
    cause = getattr(error, "orig", None) or error
    reason = redact(" ".join(str(cause).split()))[:300]
    if getattr(cause, "sqlite_errorcode", None) in _UNREADABLE:
        return DatabaseUnavailable(
            f"database {where} cannot be read: {reason}; put a copy of it back, or move it away "
            "to begin with an empty one: stored artifacts are kept and found again"
        )
    return DatabaseUnavailable(
        f"database {where} does not answer: {reason}; check that it runs and was migrated"
    )


def is_unavailable(error: Exception) -> bool:
    """Whether `error` speaks of the server and not of the statement."""
    if not isinstance(error, sql_errors.DBAPIError):
        return isinstance(error, sql_errors.TimeoutError)
    return (
        isinstance(error, sql_errors.OperationalError | sql_errors.InterfaceError)
        or type(error) is sql_errors.DatabaseError
        or error.connection_invalidated
        or getattr(error.orig, "pgcode", None) in _PASSING
    )


def _is_conflict(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", None), "pgcode", None)
    return code in {_SERIALIZATION_FAILURE, _DEADLOCK}
