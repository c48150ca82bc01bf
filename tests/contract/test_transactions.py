"""What the databases do when two write at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import update

from overproof.core.states import JobKind
from overproof.results.engine import Database, Transaction, create_engine
from overproof.results.repository import ResultsRepository
from overproof.results.tables import kind_controls


def test_no_increment_is_lost_among_threads(results_url: str) -> None:
    database = Database(create_engine(results_url))
    failures = kind_controls.c.failures_in_a_row

    def increment(_: int) -> None:
        database.write(
            lambda tx: tx.execute(update(kind_controls).values({failures: failures + 1}))
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(80)))
    database.engine.dispose()

    with closing(ResultsRepository(create_engine(results_url))) as repository:
        assert {status.failures_in_a_row for status in repository.kind_status()} == {80}


@pytest.mark.parametrize("results_url", ["postgres"], indirect=True)
@pytest.mark.postgres
def test_loser_of_a_deadlock_tries_again(results_url: str) -> None:
    database = Database(create_engine(results_url))
    both_hold_one = threading.Barrier(2)
    tries: list[Sequence[JobKind]] = []

    def pause_in_order(order: Sequence[JobKind]) -> None:
        def work(tx: Transaction) -> None:
            tries.append(order)
            for number, kind in enumerate(order):
                of_kind = kind_controls.c.kind == kind.value
                tx.execute(update(kind_controls).where(of_kind).values(paused=True))
                if number == 0 and len(tries) <= 2:
                    both_hold_one.wait()

        database.write(work)

    orders = [(JobKind.DISTILL, JobKind.TRAIN), (JobKind.TRAIN, JobKind.DISTILL)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(pause_in_order, orders))
    database.engine.dispose()

    assert len(tries) == 3
