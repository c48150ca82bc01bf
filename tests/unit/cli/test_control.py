from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from overproof.artifacts import keys
from overproof.bus.topics import Topic
from overproof.cli.control import wait_until_migrated
from overproof.core.clock import ManualClock
from overproof.core.ids import ExperimentId
from overproof.core.states import JobKind
from overproof.errors import DatabaseUnavailable
from overproof.runtime.wiring import Backends
from tests.command_line import call, read_json


@pytest.fixture
def letter(backends: Backends, tmp_path: Path) -> int:
    raw = tmp_path / "raw"
    raw.write_bytes(b"not an envelope")
    digest = hashlib.sha256(raw.read_bytes()).hexdigest()
    backends.store.put(keys.dead_letter(digest), raw, media_type="text/plain")
    return backends.repository.add_dead_letter(
        topic=Topic.JOBS_TRAIN.value, reason="not JSON", report="", sha256=digest, size_bytes=15
    )


def test_pause_and_resume_steer_the_claims_of_a_kind(
    submitted: ExperimentId, backends: Backends
) -> None:
    call("pause", "distill")
    assert backends.repository.claim(JobKind.DISTILL, owner="me", ttl_s=60) is None

    call("resume", "distill")
    assert backends.repository.claim(JobKind.DISTILL, owner="me", ttl_s=60) is not None


def test_dead_letters_are_listed_replayed_and_dropped(letter: int, backends: Backends) -> None:
    assert "not JSON" in call("dead-letters", "list").stdout

    call("dead-letters", "replay", letter)
    [shown] = read_json("dead-letters", "list")
    assert shown["replayed_at"] is not None

    call("dead-letters", "drop", letter)
    assert read_json("dead-letters", "list") == []


def test_migrate_prepares_a_database_for_the_services(home: Path) -> None:
    assert "schema" in call("migrate").stdout
    assert "schema" in call("migrate").stdout


def test_who_waits_for_the_schema_says_why_once_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    answers = [DatabaseUnavailable("it is down"), False, False, True]

    def is_migrated() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    began = clock.now()
    wait_until_migrated(is_migrated, clock)

    said = capsys.readouterr().err
    assert answers == []
    assert clock.now() > began
    assert (said.count("it is down"), said.count("older than this version")) == (1, 1)


def test_waiting_for_a_schema_that_is_there_ends_at_once(home: Path) -> None:
    call("migrate")

    assert "schema" in call("migrate", "--wait").stdout
