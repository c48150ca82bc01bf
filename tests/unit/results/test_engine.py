from __future__ import annotations

import json
import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from overproof.errors import DatabaseUnavailable, SettingsError
from overproof.results.engine import Database, create_engine, to_json
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://user:secret@host/name", "not supported"),
        ("postgresql+psycopg2://user@host/name?password=secret", "PGPASSWORD"),
        ("no url at all", "cannot be read"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_url_that_cannot_be_used_is_a_settings_error(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        create_engine(url)

    assert "secret" not in str(caught.value)


def test_folder_of_a_sqlite_file_is_made(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/new/folder/results.db")

    assert Database(engine).read(lambda tx: tx.execute(text("SELECT 1")).scalar()) == 1


def test_database_without_tables_is_unavailable_until_migrated(tmp_path: Path) -> None:
    repository = ResultsRepository(create_engine(f"sqlite:///{tmp_path}/results.db"))

    with pytest.raises(DatabaseUnavailable, match="no such table"):
        repository.experiments()
    with pytest.raises(DatabaseUnavailable, match="has schema None"):
        repository.check()


def test_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    file.write_bytes(b"not a database" * 100)

    with pytest.raises(DatabaseUnavailable, match="not a database"):
        ResultsRepository(create_engine(f"sqlite:///{file}")).experiments()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"?" * 5000])
def test_migrating_a_file_that_is_no_database_says_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "results.db"
    file.write_bytes(content)

    with pytest.raises(DatabaseUnavailable, match=r"results\.db cannot be read: .*move it away"):
        migrate(create_engine(f"sqlite:///{file}"))

    assert file.read_bytes() == content


def test_damaged_database_is_unavailable_and_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    engine = create_engine(f"sqlite:///{file}")
    migrate(engine)
    engine.dispose()
    page_bytes = 4096
    with file.open("r+b") as opened:
        opened.seek(page_bytes)
        opened.write(b"\xff" * (file.stat().st_size - page_bytes))

    with pytest.raises(DatabaseUnavailable, match="move it away"):
        ResultsRepository(create_engine(f"sqlite:///{file}")).experiments()


def test_server_that_does_not_answer_is_unavailable_and_keeps_the_password_secret() -> None:
    pytest.importorskip("psycopg2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = taken.getsockname()[1]
        url = f"postgresql+psycopg2://user:secret@127.0.0.1:{port}/name"

        with pytest.raises(DatabaseUnavailable, match="does not answer") as caught:
            ResultsRepository(create_engine(url)).experiments()

    assert "secret" not in str(caught.value)
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_what_postgres_refuses_in_json_becomes_null() -> None:
    value = {"loss": float("nan"), "all": [float("inf"), 1.5, (2, True)], "text": "é"}

    assert json.loads(to_json(value)) == {"loss": None, "all": [None, 1.5, [2, True]], "text": "é"}


def test_work_that_fails_is_undone(tmp_path: Path) -> None:
    database = Database(create_engine(f"sqlite:///{tmp_path}/results.db"))
    database.write(lambda tx: tx.execute(text("CREATE TABLE notes (line TEXT)")))

    with pytest.raises(ZeroDivisionError):
        database.write(lambda tx: (tx.execute(text("INSERT INTO notes VALUES ('x')")), 1 / 0))

    assert database.read(lambda tx: tx.execute(text("SELECT count(*) FROM notes")).scalar()) == 0


def test_migration_waits_for_whoever_uses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE notes (line TEXT)")
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    release.start()

    migrate(create_engine(f"sqlite:///{file}"))

    release.join()
    other.close()
    with closing(sqlite3.connect(file)) as fresh:
        assert fresh.execute("PRAGMA journal_mode").fetchone() == ("wal",)
