"""Numbers over several groups: stale when one of them changes, whole and equal in any order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from overproof.core.ids import ComparisonId, GroupId, UnitId, group_id_of
from overproof.core.ranking import RANKING
from overproof.core.spec import Unit
from overproof.core.states import JobKind
from overproof.errors import NotFound
from overproof.evaluation.ranking import normalised
from overproof.handlers.aggregate import compute_metrics
from overproof.handlers.compare import compute_comparison
from overproof.results.repository import ResultsRepository
from overproof.results.views import (
    Claim,
    Comparison,
    EndKind,
    GroupUnits,
    MetricRow,
    MetricScope,
    Outcome,
)
from tests.builders import an_experiment
from tests.jobs import TTL_S, one_each

BODIES = {name: {"name": name} for name in ("own", "random", "hard", "whole")}
GROUPS = {name: group_id_of(body) for name, body in BODIES.items()}
COMPARISON = Comparison(
    RANKING,
    {
        "distilled": GROUPS["own"],
        "random": GROUPS["random"],
        "distilled-hard": GROUPS["hard"],
        "whole-hard": GROUPS["whole"],
    },
)
SUBJECT = COMPARISON.comparison_id
# Of 1,000 test images; two networks a group, in pairs.
CORRECT = {"own": (668, 648), "random": (310, 330), "hard": (520, 540), "whole": (848, 868)}


def a_network(name: str, seed: int) -> Unit:
    number = list(GROUPS).index(name) * 10 + seed
    return Unit(
        id=f"trn-{number:032x}",
        kind=JobKind.TRAIN,
        task="networks",
        body={"training_set": f"{name}-{0 if name == 'whole' else seed}", "seed": seed},
        group=GROUPS[name],
    )


def a_cell(victim: Unit) -> Unit:
    """PGD on a network of the own group."""
    return Unit(
        id=victim.id.replace("trn-", "atk-"),
        kind=JobKind.ATTACK,
        task="white-box",
        body={
            "victim": victim.id,
            "attack": {"name": "pgd-linf", "params": {}},
            "threat": {"norm": "linf", "epsilon": "8/255"},
            "test_set": {"name": "digits", "version": "bundled-1"},
            "seed": 0,
        },
        needs=(UnitId(victim.id),),
        group=victim.group,
    )


NETWORKS = {(name, seed): a_network(name, seed) for name in GROUPS for seed in (0, 1)}


def submit(repository: ResultsRepository, units: Sequence[Unit] | None = None) -> str:
    return repository.create_experiment(
        an_experiment(),
        list(NETWORKS.values()) if units is None else units,
        groups={GROUPS[name]: body for name, body in BODIES.items()},
        comparisons=[COMPARISON],
        batch=one_each,
    ).experiment_id


def claims_of(repository: ResultsRepository, kind: JobKind = JobKind.TRAIN) -> dict[str, Claim]:
    """Unit → the claim of its job, for all jobs that are ready."""
    claims = {}
    while (held := repository.claim(kind, owner="worker", ttl_s=TTL_S)) is not None:
        claims[held.job.units[0].id] = held
    return claims


def finish(repository: ResultsRepository, held: Claim, **result: Any) -> None:
    unit_id = UnitId(held.job.units[0].id)
    repository.end(held, Outcome(EndKind.SUCCEEDED, {unit_id: result}))


def counts(name: str, seed: int) -> dict[str, int]:
    return {"clean_correct": CORRECT[name][seed], "total": 1000}


def aggregate(repository: ResultsRepository) -> None:
    """What the aggregator does on an event."""
    for group in repository.groups_to_aggregate(50):
        repository.recompute(group, compute_metrics)
    for comparison in repository.comparisons_to_aggregate(50):
        repository.recompute_comparison(comparison, compute_comparison)


def rows(repository: ResultsRepository) -> dict[str, MetricRow]:
    return {row.metric: row for row in repository.metrics([SUBJECT])}


def compare_nothing(_: Comparison, __: Mapping[GroupId, GroupUnits]) -> list[MetricRow]:
    return []


def test_numbers_are_those_of_the_runs_in_pairs(repository: ResultsRepository) -> None:
    submit(repository)
    claims = claims_of(repository)
    for key, unit in NETWORKS.items():
        finish(repository, claims[unit.id], **counts(*key))

    aggregate(repository)

    found = rows(repository)
    recovery, improvement = found["hard-label-recovery"], found["improvement-over-random"]
    assert (recovery.value, recovery.low, recovery.high) == pytest.approx((0.328, 0.328, 0.328))
    assert improvement.value == pytest.approx(0.338)
    assert found["ranking-score"].value == pytest.approx(normalised(0.005))
    assert {row.scope for row in found.values()} == {MetricScope.COMPARISON}
    assert {(row.present, row.expected) for row in found.values()} == {(4, 4), (8, 8)}
    assert repository.comparisons_to_aggregate(10) == []


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_rows_are_the_same_in_whatever_order_groups_end_and_how_often_they_are_told(
    repository: ResultsRepository, order: Sequence[int]
) -> None:
    submit(repository)
    claims = claims_of(repository)
    keys = sorted(NETWORKS)
    in_order = [
        keys[2 * group + seed] for group in order for seed in (order[0] % 2, 1 - order[0] % 2)
    ]

    for key in in_order:
        finish(repository, claims[NETWORKS[key].id], **counts(*key))
        aggregate(repository)
        aggregate(repository)  # the event comes twice
        finish(repository, claims[NETWORKS[key].id], clean_correct=0, total=1000)  # and so the end
        for group in GROUPS.values():
            repository.recompute(group, compute_metrics)
        aggregate(repository)

    values = [row.value for row in repository.metrics([SUBJECT])]
    assert values == pytest.approx([0.328, 0.338, normalised(0.005)])
    assert {row.reason for row in repository.metrics([SUBJECT])} == {None}


def test_late_correction_replaces_the_numbers(repository: ResultsRepository) -> None:
    submit(repository)
    claims = claims_of(repository)
    for key, unit in NETWORKS.items():
        finish(repository, claims[unit.id], **counts(*key))
    aggregate(repository)
    redone = NETWORKS["whole", 0]
    job = claims[redone.id]

    repository.quarantine(job.job_id, job.token, lambda: None)
    again = claims_of(repository)[redone.id]
    finish(repository, again, clean_correct=948, total=1000)
    aggregate(repository)

    assert rows(repository)["hard-label-recovery"].value == pytest.approx(0.378)


def test_missing_networks_are_counted_and_told(repository: ResultsRepository) -> None:
    submit(repository)
    claims = claims_of(repository)
    for key in [("own", 0), ("random", 0), ("random", 1), ("hard", 0), ("hard", 1)]:
        finish(repository, claims[NETWORKS[key].id], **counts(*key))

    aggregate(repository)

    found = rows(repository)
    recovery, improvement = found["hard-label-recovery"], found["improvement-over-random"]
    assert (recovery.value, recovery.present, recovery.expected) == (None, 2, 4)
    assert recovery.reason == "2 of 2 networks of whole-hard not yet measured"
    assert improvement.value == pytest.approx(0.668 - 0.320)
    assert (improvement.low, improvement.present, improvement.expected) == (None, 3, 4)
    assert improvement.reason == "1 of 2 networks of distilled not yet measured"
    assert found["ranking-score"].value is None


def test_one_seed_has_numbers_and_no_interval(repository: ResultsRepository) -> None:
    first = [NETWORKS[name, 0] for name in GROUPS]
    submit(repository, first)
    claims = claims_of(repository)
    for name in GROUPS:
        finish(repository, claims[NETWORKS[name, 0].id], **counts(name, 0))

    aggregate(repository)

    score = rows(repository)["ranking-score"]
    assert score.value == pytest.approx(0.2754, abs=5e-5)
    assert (score.low, score.high, score.present, score.expected) == (None, None, 4, 4)


def test_network_that_knows_nothing_has_no_drop_rate_and_the_worst_recovery(
    repository: ResultsRepository,
) -> None:
    victim = NETWORKS["own", 0]
    submit(repository, [*(NETWORKS[name, 0] for name in GROUPS), a_cell(victim)])
    claims = claims_of(repository)
    for name in GROUPS:
        correct = 0 if name in ("own", "hard") else CORRECT[name][0]
        finish(repository, claims[NETWORKS[name, 0].id], clean_correct=correct, total=1000)
    cell = claims_of(repository, JobKind.ATTACK)[a_cell(victim).id]
    finish(repository, cell, clean_correct=0, total=1000, robust_s1=0, robust_s2=0, robust_s3=0)

    aggregate(repository)

    drop = {
        row.slice: (row.value, row.reason)
        for row in repository.metrics([GROUPS["own"]])
        if row.metric == "drop-rate"
    }
    assert drop["pgd-linf@8/255:S2"] == (None, "1 of 1 clean accuracy is 0")
    assert rows(repository)["hard-label-recovery"].value == pytest.approx(0.848)
    assert rows(repository)["improvement-over-random"].value == pytest.approx(-0.310)


def test_group_that_changes_makes_only_its_comparisons_stale(
    repository: ResultsRepository,
) -> None:
    other = Comparison("other", {"only": GROUPS["own"]})
    repository.create_experiment(
        an_experiment(),
        list(NETWORKS.values()),
        groups={GROUPS[name]: body for name, body in BODIES.items()},
        comparisons=[COMPARISON, other],
        batch=one_each,
    )

    def settled() -> None:
        for comparison in repository.comparisons_to_aggregate(10):
            repository.recompute_comparison(comparison, compare_nothing)

    stale = []
    for name in ("random", "own"):
        settled()
        repository.recompute(GROUPS[name], compute_metrics)
        stale.append(set(repository.comparisons_to_aggregate(10)))

    assert stale == [{SUBJECT}, {SUBJECT, other.comparison_id}]


def test_failed_computation_leaves_rows_and_staleness(repository: ResultsRepository) -> None:
    submit(repository)

    with pytest.raises(ValueError, match="is not comparison"):
        repository.recompute_comparison(SUBJECT, lambda _c, _m: [a_row(GROUPS["own"])])
    with pytest.raises(NotFound, match="no comparison"):
        repository.recompute_comparison(ComparisonId("cmp-none"), compare_nothing)

    assert repository.metrics([SUBJECT]) == []
    assert repository.comparisons_to_aggregate(10) == [SUBJECT]


def a_row(subject: str) -> MetricRow:
    return MetricRow(
        MetricScope.COMPARISON, subject, "hard-label-recovery", "", 0.5, "fraction", 1, 1
    )


def test_submitting_again_keeps_what_is_computed(repository: ResultsRepository) -> None:
    submit(repository)
    repository.recompute_comparison(SUBJECT, lambda _c, _m: [a_row(SUBJECT)])

    submit(repository)

    assert repository.comparisons_to_aggregate(10) == []
    assert repository.metrics([SUBJECT]) == [a_row(SUBJECT)]


def test_comparisons_of_an_experiment_are_those_of_its_groups_alone(
    repository: ResultsRepository,
) -> None:
    whole = submit(repository)
    part = submit(repository, [NETWORKS["own", 0]])
    repository.recompute_comparison(SUBJECT, lambda _c, _m: [a_row(SUBJECT)])

    (row,) = repository.comparisons(RANKING, whole)  # type: ignore[arg-type]

    assert row.comparison == COMPARISON
    assert row.bodies["whole-hard"] == BODIES["whole"]
    assert row.metrics == {("hard-label-recovery", ""): a_row(SUBJECT)}
    assert repository.comparisons(RANKING, part) == []  # type: ignore[arg-type]
    assert repository.comparisons(RANKING) == [row]
    assert repository.comparisons("other") == []


def test_group_computed_while_its_comparison_is_leaves_it_stale(live: ResultsRepository) -> None:
    submit(live)
    begun = threading.Event()
    late = threading.Thread(target=live.recompute, args=(GROUPS["own"], compute_metrics))

    def compute(_: Comparison, __: Mapping[GroupId, GroupUnits]) -> list[MetricRow]:
        if not begun.is_set():
            begun.set()
            late.start()
            late.join(timeout=0.5)  # it waits for the comparison, or for the whole database
        return [a_row(SUBJECT)]

    live.recompute_comparison(SUBJECT, compute)
    late.join()

    assert live.comparisons_to_aggregate(10) == [SUBJECT]
    assert live.metrics([SUBJECT]) == [a_row(SUBJECT)]


def test_computing_groups_and_comparisons_at_once_never_blocks_or_doubles(
    live: ResultsRepository,
) -> None:
    submit(live)
    claims = claims_of(live)
    for key, unit in NETWORKS.items():
        finish(live, claims[unit.id], **counts(*key))
    tasks = itertools.chain.from_iterable(
        [
            *(
                lambda group=group: live.recompute(group, compute_metrics)
                for group in GROUPS.values()
            ),
            lambda: live.recompute_comparison(SUBJECT, compute_comparison),
        ]
        for _ in range(4)
    )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: task(), tasks))
    aggregate(live)

    assert len(live.metrics([SUBJECT])) == 3
    assert rows(live)["hard-label-recovery"].value == pytest.approx(0.328)
