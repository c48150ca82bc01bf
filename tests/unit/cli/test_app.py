from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import NOBODY_LISTENS, call


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overproof", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "absent.yaml"], "absent.yaml has 1 fault"),
        (["status", "exp-0"], "no experiment exp-0"),
        (["status", "job-0"], "no job job-0"),
        (["status", "nonsense"], "is no id"),
        (["plugins", "show", "attacks", "pdg"], "did you mean pgd"),
        (["dead-letters", "drop", "7"], "no dead letter 7"),
        (["pause", "nonsense"], "Invalid value"),
        (["leaderboard", "exp-0"], "no experiment exp-0"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why_without_a_traceback(
    home: Path, arguments: list[str], says: str
) -> None:
    result = call(*arguments, code=2)

    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_process_exits_with_the_code_and_one_line(tmp_path: Path) -> None:
    process = run_process("status", "exp-0", OVERPROOF_HOME=str(tmp_path))

    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        "overproof: no experiment exp-0; list them with `overproof status`"
    ]


def test_unusable_settings_are_wrong_use(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("OVERPROOF_LEASE_TTL_S", "soon")

    assert "OVERPROOF_LEASE_TTL_S" in call("status", code=2).stderr


def test_database_that_does_not_answer_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", NOBODY_LISTENS)

    assert "overproof: database" in call("status", code=1).stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from overproof.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'sqlalchemy', 'pydantic', 'plotly', 'numpy', 'rich.table')"
        " if m in sys.modules], file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert process.stderr.strip() == "[]"
    assert "leaderboard" in process.stdout
