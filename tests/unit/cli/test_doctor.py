from __future__ import annotations

from pathlib import Path

import pytest

from overproof.cli.doctor import check_clock, check_compiler, check_file_system, check_folder
from tests.command_line import NOBODY_LISTENS, call, read_json


def test_doctor_finds_embedded_back_ends_in_order(home: Path) -> None:
    findings = {each["what"]: each for each in read_json("doctor")}

    for what in ("settings", "home", "bus", "artifacts", "database", "clock"):
        assert findings[what]["level"] == "ok", findings[what]


def test_doctor_ends_with_1_when_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", NOBODY_LISTENS)

    stdout = call("doctor", code=1).stdout

    assert "does not answer" in stdout
    assert "secret" not in stdout


@pytest.mark.parametrize(
    ("mounts", "level"),
    [
        ("/dev/sda / ext4 rw 0 0\n", "ok"),
        ("/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n", "fail"),
        ("server:/x / nfs rw 0 0\n/dev/sdb /data xfs rw 0 0\n", "ok"),
        ("", "warn"),
    ],
)
def test_home_on_a_network_file_system_fails(mounts: str, level: str) -> None:
    assert check_file_system(Path("/data/overproof"), mounts).level == level


def test_clock_that_differs_from_the_databases_is_told() -> None:
    assert check_clock(1000.0, 1001.0).level == "ok"
    assert check_clock(1000.0, 1100.0).level == "warn"


def test_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)

    assert check_compiler(lambda name: None).level == "warn"
    assert check_compiler(lambda name: f"/usr/bin/{name}").found == "/usr/bin/c++"


def test_home_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert check_folder("home", tmp_path / "file").level == "fail"
    assert check_folder("home", tmp_path / "not" / "yet").level != "fail"
