from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overproof.core.semantics import Semantics
from overproof.evaluation.counts import CellCounts, CleanCounts, NetworkCounts
from overproof.evaluation.intervals import mean_and_ci
from overproof.evaluation.robustness import (
    Number,
    accuracy,
    drop_rate,
    mean_over_seeds,
    network_clean_accuracy,
    network_drop_rate,
    network_robust_accuracy,
)


def a_cell(
    total: int = 10,
    clean: int = 8,
    s1: int = 4,
    s2: int = 2,
    s3: int = 3,
    invalid: str | None = None,
) -> CellCounts:
    robust = {Semantics.S1: s1, Semantics.S2: s2, Semantics.S3: s3}
    return CellCounts(total, clean, robust, invalid)


def test_accuracy_is_the_share_of_right_samples() -> None:
    assert accuracy(3, 4) == Number(0.75)


def test_accuracy_of_no_samples_is_undefined() -> None:
    assert accuracy(0, 0) == Number(None, "the test set is empty")


@pytest.mark.parametrize(("correct", "total"), [(5, 4), (-1, 4)])
def test_impossible_counts_are_refused(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        accuracy(correct, total)


def test_drop_rate_is_the_relative_loss() -> None:
    # (0.8 - 0.2) / 0.8
    assert drop_rate(Number(0.8), Number(0.2)).value == pytest.approx(0.75)


def test_drop_rate_is_negative_when_the_attack_helps() -> None:
    # (0.5 - 0.6) / 0.5
    assert drop_rate(Number(0.5), Number(0.6)).value == pytest.approx(-0.2)


def test_drop_rate_without_clean_accuracy_is_undefined_and_says_why() -> None:
    assert drop_rate(Number(0.0), Number(0.0)) == Number(None, "clean accuracy is 0")


def test_drop_rate_passes_on_why_an_accuracy_is_undefined() -> None:
    assert drop_rate(Number(0.5), Number(None, "non-finite logits")).reason == "non-finite logits"


@given(st.integers(1, 50), st.data())
def test_drop_rate_is_at_most_one_and_falls_as_robust_accuracy_grows(
    total: int, data: st.DataObject
) -> None:
    clean = data.draw(st.integers(1, total))
    fewer, more = sorted(data.draw(st.tuples(*[st.integers(0, total)] * 2)))

    high = drop_rate(accuracy(clean, total), accuracy(fewer, total)).value
    low = drop_rate(accuracy(clean, total), accuracy(more, total)).value
    assert low is not None
    assert high is not None
    assert low <= high <= 1


def test_network_metrics_give_one_number_for_each_meaning_of_robust() -> None:
    network = NetworkCounts(CleanCounts(8, 10), {"pgd-linf@8/255": a_cell()})

    assert network_clean_accuracy(network) == {"": Number(0.8)}
    assert network_robust_accuracy(network) == {
        "pgd-linf@8/255:S1": Number(0.4),
        "pgd-linf@8/255:S2": Number(0.2),
        "pgd-linf@8/255:S3": Number(0.3),
    }
    drops = {name: number and number.value for name, number in network_drop_rate(network).items()}
    assert drops == pytest.approx(
        {"pgd-linf@8/255:S1": 0.5, "pgd-linf@8/255:S2": 0.75, "pgd-linf@8/255:S3": 0.625}
    )


def test_invalid_cell_gives_no_number_but_its_reason() -> None:
    network = NetworkCounts(
        CleanCounts(8, 10), {"fgsm-linf@8/255": a_cell(invalid="non-finite logits")}
    )

    for metric in (network_robust_accuracy, network_drop_rate):
        assert set(metric(network).values()) == {Number(None, "non-finite logits")}


def test_what_is_not_yet_measured_is_listed_as_wanted() -> None:
    network = NetworkCounts(None, {"fgsm-linf@8/255": None})

    assert network_clean_accuracy(network) == {"": None, "last": None, "best": None}
    assert network_drop_rate(network)["fgsm-linf@8/255:S2"] is None


def test_networks_of_one_training_set_are_the_sample() -> None:
    values = [0.2, 0.3, 0.7]

    mean = mean_over_seeds([[Number(value) for value in values]])

    expected = mean_and_ci(values)
    assert (mean.value, mean.low, mean.high) == (expected.mean, expected.low, expected.high)
    assert (mean.present, mean.expected, mean.reason) == (3, 3, None)


def test_networks_of_a_set_are_averaged_before_the_sets() -> None:
    # sets of 1 and 3 networks: (0.8 + 0.2) / 2, not (0.8 + 3 · 0.2) / 4
    mean = mean_over_seeds([[Number(0.8)], [Number(0.2)] * 3])

    expected = mean_and_ci([0.8, 0.2])
    assert mean.value == pytest.approx(0.5)
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high))
    assert mean.present == 4


def test_one_finished_set_of_several_has_no_interval() -> None:
    mean = mean_over_seeds([[Number(0.8), Number(0.6)], [None, None]])

    assert mean.value == pytest.approx(0.7)
    assert (mean.low, mean.high) == (None, None)
    assert (mean.present, mean.expected) == (2, 4)
    assert mean.reason == "2 of 4 not yet measured"


def test_undefined_numbers_leave_the_mean_and_are_told() -> None:
    mean = mean_over_seeds([[Number(0.5), Number(None, "clean accuracy is 0"), None]])

    assert mean.value == 0.5
    assert (mean.present, mean.expected) == (1, 3)
    assert mean.reason == "1 of 3 clean accuracy is 0; 1 of 3 not yet measured"


def test_mean_of_nothing_is_undefined() -> None:
    mean = mean_over_seeds([[None], [Number(None, "non-finite logits")]])

    assert mean.value is None
    assert (mean.present, mean.expected) == (0, 2)
    assert mean.reason == "1 of 2 not yet measured; 1 of 2 non-finite logits"


def test_last_and_best_accuracies_stand_beside_the_kept_one() -> None:
    watched = NetworkCounts(CleanCounts(70, 100, last=60, best=75))

    values = {
        name: number and number.value for name, number in network_clean_accuracy(watched).items()
    }
    assert values == {"": 0.7, "last": 0.6, "best": 0.75}
    assert set(network_clean_accuracy(NetworkCounts(CleanCounts(70, 100)))) == {""}
