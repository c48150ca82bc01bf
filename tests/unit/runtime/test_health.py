from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from overproof.core.clock import ManualClock
from overproof.errors import SettingsError
from overproof.runtime.health import STALLED_AFTER_S, HealthHooks, HealthServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def health(clock: ManualClock) -> HealthHooks:
    return HealthHooks(clock=clock)


@pytest.fixture
def server(health: HealthHooks) -> Iterator[HealthServer]:
    with closing(HealthServer(health, lambda: b"metrics\n", host="127.0.0.1", port=0)) as made:
        yield made


def code(server: HealthServer, path: str) -> int:
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_live_while_the_loop_turns(health: HealthHooks, clock: ManualClock) -> None:
    clock.advance(STALLED_AFTER_S - 1)
    before = health.is_live
    clock.advance(1)
    stalled = health.is_live
    health.after_turn()

    assert (before, stalled, health.is_live) == (True, False, True)


def test_ready_once_the_database_has_answered_lately(
    health: HealthHooks, clock: ManualClock
) -> None:
    at_first = health.is_ready
    health.after_answer()
    answered = health.is_ready
    clock.advance(STALLED_AFTER_S)

    assert (at_first, answered, health.is_ready) == (False, True, False)


def test_file_is_touched_at_most_once_a_second(clock: ManualClock, tmp_path: Path) -> None:
    file = tmp_path / "health"
    health = HealthHooks(clock=clock, file=file)
    health.after_turn()
    file.unlink()
    clock.advance(0.5)
    health.after_turn()
    early = file.exists()
    clock.advance(0.5)
    health.after_turn()

    assert (early, file.exists()) == (False, True)


def test_endpoints_answer_with_the_state(
    server: HealthServer, health: HealthHooks, clock: ManualClock
) -> None:
    at_first = [code(server, path) for path in ("/live", "/ready", "/metrics", "/none")]
    health.after_answer()
    answered = code(server, "/ready?verbose=1")
    clock.advance(STALLED_AFTER_S)

    assert at_first == [200, 503, 200, 404]
    assert answered == 200
    assert [code(server, path) for path in ("/live", "/ready")] == [503, 503]


def test_taken_port_is_a_fault_of_the_settings(server: HealthServer, health: HealthHooks) -> None:
    with pytest.raises(SettingsError, match="OVERPROOF_METRICS_PORT"):
        HealthServer(health, lambda: b"", host="127.0.0.1", port=server.port)
