from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from overproof.catalog.attacks import ATTACKS
from overproof.core.ids import JobId, UnitId, group_id_of
from overproof.core.spec import CellBody
from overproof.core.states import JobKind, UnitState
from overproof.evaluation.intervals import mean_and_ci
from overproof.experiments.units import make_unit
from overproof.handlers.aggregate import compute_metrics
from overproof.results.views import MetricRow, MetricScope, UnitRow

GROUP = {"dataset": {"name": "digits"}, "method": {"name": "dm"}, "images_per_class": 1}
GROUP_ID = group_id_of(GROUP)
DATASET = {"name": "digits", "version": "bundled-1"}
SLICE = "pgd-linf[steps=20]@8/255:S2"


def unit_id(prefix: str, number: int) -> UnitId:
    return UnitId(f"{prefix}-{number:032x}")


def a_unit(
    kind: JobKind, number: int, body: Mapping[str, Any], result: Mapping[str, Any] | None
) -> UnitRow:
    prefix = {JobKind.TRAIN: "trn", JobKind.ATTACK: "atk"}[kind]
    return UnitRow(
        unit_id=unit_id(prefix, number),
        kind=kind,
        task="networks" if kind is JobKind.TRAIN else "white-box",
        body=body,
        group=GROUP_ID,
        state=UnitState.PENDING if result is None else UnitState.DONE,
        job_id=JobId("job-" + "0" * 32),
        token=1,
        result=result or {},
    )


def a_network(number: int, *, on: int | Mapping[str, str] = 1, correct: int | None = 80) -> UnitRow:
    body = {
        "training_set": unit_id("dst", on) if isinstance(on, int) else on,
        "test_set": DATASET,
        "network": {"name": "convnet"},
        "protocol": {"name": "dsa"},
        "seed": number,
    }
    result = None if correct is None else {"clean_correct": correct, "total": 100}
    return a_unit(JobKind.TRAIN, number, body, result)


def encoded(survivors: str) -> str:
    """`1100…`, a digit for each sample, as attackers store it."""
    return b64encode(int(survivors, 2).to_bytes(len(survivors) // 8, "big")).decode()


def a_cell(
    number: int,
    *,
    attack: str = "pgd-linf",
    survivors: str | None = None,
    clean: int = 80,
    s1: int = 30,
    s2: int = 20,
    s3: int = 25,
    invalid: str | None = None,
    done: bool = True,
) -> UnitRow:
    body = {
        "victim": unit_id("trn", number),
        "attack": {"name": attack, "params": {"steps": 20, "step_size": "2/255"}},
        "threat": {"norm": "linf", "epsilon": "8/255"},
        "test_set": DATASET,
        "seed": number,
    }
    result = {
        "total": 100,
        "clean_correct": clean,
        "robust_s1": s1,
        "robust_s2": s2,
        "robust_s3": s3,
        "invalid": invalid,
        "survivors": survivors and encoded(survivors),
    }
    apart = 0 if attack == "pgd-linf" else 1_000
    return a_unit(JobKind.ATTACK, number + apart, body, result if done else None)


def group_row(rows: Sequence[UnitRow], metric: str, slice_name: str) -> MetricRow:
    [row] = [
        row
        for row in compute_metrics(GROUP, rows)
        if (row.scope, row.subject) == (MetricScope.DISTILLED_SET, GROUP_ID)
        and (row.metric, row.slice) == (metric, slice_name)
    ]
    return row


def test_drop_rate_of_the_group_is_the_mean_of_rates_not_the_rate_of_means() -> None:
    rows = [a_network(0, on=0), a_cell(0), a_network(1, on=1, correct=40), a_cell(1, clean=40)]

    row = group_row(rows, "drop-rate", SLICE)

    # (80 - 20) / 80 and (40 - 20) / 40; of the means it would be (60 - 20) / 60
    assert row.value == pytest.approx((0.75 + 0.5) / 2)
    assert (row.present, row.expected, row.unit) == (2, 2, "fraction")


def test_interval_is_over_the_distilled_sets() -> None:
    rows = [
        a_network(0, on=0, correct=10),
        a_network(1, on=0, correct=30),
        a_network(2, on=1, correct=60),
    ]

    row = group_row(rows, "clean-accuracy", "")

    expected = mean_and_ci([0.2, 0.6])
    assert (row.value, row.low, row.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert row.present == 3


def test_networks_on_the_whole_set_are_the_sample() -> None:
    rows = [a_network(0, on=DATASET, correct=10), a_network(1, on=DATASET, correct=30)]

    row = group_row(rows, "clean-accuracy", "")

    assert (row.low, row.high) == pytest.approx(
        (mean_and_ci([0.1, 0.3]).low, mean_and_ci([0.1, 0.3]).high)
    )


def test_every_network_has_its_own_numbers() -> None:
    metrics = compute_metrics(GROUP, [a_network(0), a_cell(0)])

    own = {
        (row.metric, row.slice): row.value
        for row in metrics
        if row.scope is MetricScope.NETWORK and row.subject == unit_id("trn", 0)
    }
    assert own["clean-accuracy", ""] == 0.8
    assert own["robust-accuracy", "pgd-linf[steps=20]@8/255:S1"] == 0.3
    assert own["robust-accuracy", "pgd-linf[steps=20]@8/255:S3"] == 0.25
    assert own["drop-rate", SLICE] == pytest.approx(0.75)


def test_invalid_cell_is_left_out_and_told() -> None:
    rows = [
        a_network(0, on=0),
        a_cell(0),
        a_network(1, on=1),
        a_cell(1, invalid="non-finite logits"),
    ]

    row = group_row(rows, "robust-accuracy", SLICE)

    assert row.value == pytest.approx(0.2)
    assert (row.present, row.expected) == (1, 2)
    assert row.reason == "1 of 2 non-finite logits"


def test_network_that_learned_nothing_has_no_drop_rate() -> None:
    row = group_row(
        [a_network(0, correct=0), a_cell(0, clean=0, s1=0, s2=0, s3=0)], "drop-rate", SLICE
    )

    assert row.value is None
    assert (row.present, row.expected) == (0, 1)
    assert row.reason == "1 of 1 clean accuracy is 0"


def test_pending_units_are_expected_but_not_present() -> None:
    rows = [a_network(0, on=0), a_cell(0), a_network(1, on=1, correct=None), a_cell(1, done=False)]

    clean = group_row(rows, "clean-accuracy", "")
    robust = group_row(rows, "robust-accuracy", SLICE)

    assert (clean.present, clean.expected) == (1, 2)
    assert (robust.present, robust.expected) == (1, 2)
    assert robust.reason == "1 of 2 not yet measured"


def test_order_of_rows_does_not_matter_and_keys_are_unique() -> None:
    rows = [unit for n in range(4) for unit in (a_network(n, on=n % 2, correct=50 + n), a_cell(n))]
    shuffled = random.Random(0).sample(rows, len(rows))

    metrics = compute_metrics(GROUP, rows)
    again = compute_metrics(GROUP, shuffled)

    assert set(metrics) == set(again)
    keys = [(row.scope, row.subject, row.metric, row.slice) for row in metrics]
    assert len(keys) == len(set(keys))


def test_worst_case_over_attacks_is_taken_by_sample_then_averaged_over_networks() -> None:
    def cells(number: int, pgd: str, cw: str) -> list[UnitRow]:
        return [
            a_cell(number, s2=pgd.count("1"), survivors=pgd),
            a_cell(number, attack="cw-linf", s2=cw.count("1"), survivors=cw),
        ]

    rows = [
        a_network(0, on=0),
        *cells(0, "1" * 40 + "0" * 64, "0" * 20 + "1" * 40 + "0" * 44),
        a_network(1, on=1),
        *cells(1, "1" * 40 + "0" * 64, "1" * 40 + "0" * 64),
    ]

    worst = group_row(rows, "robust-accuracy", "worst-case-linf@8/255:S2")
    drop = group_row(rows, "drop-rate", "worst-case-linf@8/255:S2")
    broken = group_row(rows, "breaking-share", SLICE.rpartition(":")[0])

    # 20 and 40 of 100 samples are in both cells, of 80 that are right when clean.
    assert worst.value == pytest.approx((0.2 + 0.4) / 2)
    assert drop.value == pytest.approx((60 / 80 + 40 / 80) / 2)
    assert broken.value == pytest.approx((40 / 60 + 1.0) / 2)
    assert (worst.present, worst.expected) == (2, 2)
    slices = {row.slice for row in compute_metrics(GROUP, rows) if row.slice.startswith("worst")}
    assert slices == {"worst-case-linf@8/255:S2"}


def test_worst_case_of_a_pending_attack_is_not_yet_measured() -> None:
    rows = [
        a_network(0, on=0),
        a_cell(0, survivors="1" * 20 + "0" * 84),
        a_cell(0, attack="cw-linf", done=False),
    ]

    row = group_row(rows, "robust-accuracy", "worst-case-linf@8/255:S2")

    assert (row.value, row.present, row.expected) == (None, 0, 1)
    assert row.reason == "1 of 1 not yet measured"


def test_warning_of_a_group_tells_what_the_first_network_showed() -> None:
    rows = [a_network(0, on=0), a_cell(0), a_network(1, on=1), a_cell(1)]
    flat = replace(rows[3], result={**rows[3].result, "flat_gradients": 30})

    row = group_row([*rows[:3], flat], "reliability-warning", f"flat-gradients:{SLICE[:-3]}")

    assert row.value == 0.5
    assert row.reason == "gradients of zero on 30.0% of the samples: the attack was blind there"


def test_group_without_units_has_no_metrics() -> None:
    assert compute_metrics(GROUP, []) == []


def test_cell_of_todays_attack_stands_for_older_ones_that_others_may_have_left() -> None:
    older = replace(a_cell(1, s2=20), unit_id=unit_id("atk", 2**128 - 1))
    body = CellBody.model_validate(older.body)
    today = make_unit(older.task, body, plugins=[(ATTACKS, body.attack)])
    newer = replace(a_cell(1, s2=10), unit_id=UnitId(today.id))
    pending = replace(newer, state=UnitState.PENDING, result={})

    for rows in ([older, newer], [newer, older]):
        (row,) = of_networks(compute_metrics(GROUP, [a_network(1), *rows]))
        assert row.value == pytest.approx(0.1)
    # What is not measured yet is missing: an older number is none of today's.
    assert of_networks(compute_metrics(GROUP, [a_network(1), older, pending])) == []


def test_finished_cell_is_not_hidden_by_one_that_waits_where_both_are_old() -> None:
    done = replace(a_cell(1, s2=20), unit_id=unit_id("atk", 1))
    pending = replace(a_cell(1, done=False), unit_id=unit_id("atk", 2))

    for rows in ([done, pending], [pending, done]):
        (row,) = of_networks(compute_metrics(GROUP, [a_network(1), *rows]))
        assert row.value == pytest.approx(0.2)


def of_networks(rows: Sequence[MetricRow]) -> list[MetricRow]:
    return [
        row
        for row in rows
        if (row.scope, row.metric, row.slice) == (MetricScope.NETWORK, "robust-accuracy", SLICE)
    ]
