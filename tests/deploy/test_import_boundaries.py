"""What a process has imported by the time that it is ready: no torch where none computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NUMERICS = {"torch", "torchvision", "timm", "sklearn"}
CLIENTS = {"kafka", "minio", "psycopg2"}

WIRE = """
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
Backends.from_settings(Settings.from_env()).close()
"""


def command(*arguments: str) -> str:
    """Python that runs `overproof ARGUMENTS`, silently, and fails where the command fails."""
    return f"""
import contextlib, io, sys
from overproof.cli import main
sys.argv = {["overproof", *arguments]!r}
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


def imported_by(code: str, home: Path) -> set[str]:
    """Top-level names in `sys.modules` of a fresh process that has run `code`."""
    show = "import sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if "OVERPROOF" not in name},
            "OVERPROOF_HOME": str(home),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import services.aggregator.__main__", id="aggregator"),
        pytest.param("import overproof.cli.app", id="cli"),
        pytest.param("import overproof.report.page", id="report"),
        pytest.param("import dashboard.data", id="dashboard", marks=pytest.mark.dashboard),
    ],
)
def test_what_computes_nothing_leaves_numerics_out(code: str, tmp_path: Path) -> None:
    names = imported_by(code, tmp_path)

    assert "overproof" in names
    assert names & NUMERICS == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("plugins", "list", "attacks"),
        ("plan", "examples/quickstart.yaml"),
        ("leaderboard",),
    ],
    ids=" ".join,
)
def test_commands_that_only_look_leave_numerics_out(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    names = imported_by(command(*arguments), tmp_path)

    assert "pydantic" in names
    assert names & NUMERICS == set()


def test_embedded_back_ends_need_no_client_of_a_server(tmp_path: Path) -> None:
    names = imported_by(WIRE, tmp_path)

    assert "sqlalchemy" in names
    assert names & (CLIENTS | NUMERICS) == set()


def test_help_reads_neither_database_nor_numerics(tmp_path: Path) -> None:
    names = imported_by(command("--help"), tmp_path)

    assert "typer" in names
    assert names & ({"sqlalchemy", "alembic"} | CLIENTS | NUMERICS) == set()
    assert not any(tmp_path.iterdir())


def test_the_check_sees_an_import_that_is_there(tmp_path: Path) -> None:
    assert "kafka" in imported_by("def late():\n    import kafka\nlate()", tmp_path)
