"""Scores by hand, and their intervals against resampling from first principles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from overproof.core.ranking import Role
from overproof.errors import InvalidData
from overproof.evaluation.intervals import mean_and_ci
from overproof.evaluation.ranking import (
    GroupRuns,
    augmentation_robust_score,
    hard_label_recovery,
    improvement_over_random,
    normalised,
    ranking_score,
)

WORKED = {Role.WHOLE: 0.848, Role.HARD: 0.520, Role.OWN: 0.668, Role.RANDOM: 0.310}


def runs(
    group: str, values: Sequence[float] | Mapping[str, float], expected: int | None = None
) -> GroupRuns:
    named = values if isinstance(values, Mapping) else {str(i): v for i, v in enumerate(values)}
    return GroupRuns(group, named, len(named), len(named) if expected is None else expected)


def groups(**values: Sequence[float]) -> dict[Role, GroupRuns]:
    return {Role[name]: runs(name, accuracies) for name, accuracies in values.items()}


def test_worked_case() -> None:
    known = {role: runs(role, [value]) for role, value in WORKED.items()}

    assert hard_label_recovery(known).value == pytest.approx(0.328)
    assert improvement_over_random(known).value == pytest.approx(0.358)
    score = ranking_score(known)
    assert score.value == pytest.approx(0.2754, abs=5e-5)
    assert score.value == pytest.approx((math.exp(0.015) - math.exp(-1)) / (math.e - 1 / math.e))
    assert (score.low, score.high, score.present, score.expected) == (None, None, 4, 4)


@pytest.mark.parametrize(("alpha", "score"), [(-1.0, 0.0), (1.0, 1.0), (0.0, 0.2689414)])
def test_scale_of_scores(alpha: float, score: float) -> None:
    assert normalised(alpha) == pytest.approx(score)


@pytest.mark.parametrize(
    ("weight", "alpha"), [(0.0, -0.328), (1.0, 0.358), (0.25, 0.25 * 0.358 - 0.75 * 0.328)]
)
def test_weight_moves_the_score_between_both_parts(weight: float, alpha: float) -> None:
    known = {role: runs(role, [value]) for role, value in WORKED.items()}

    assert ranking_score(known, weight).value == pytest.approx(normalised(alpha))


def test_augmentation_robust_score_by_hand() -> None:
    known = groups(OWN=[0.6], RANDOM=[0.4], OWN_PLAIN=[0.5], RANDOM_PLAIN=[0.45])

    # half of 0.2 and half of 0.05
    assert augmentation_robust_score(known).value == pytest.approx(normalised(0.125))
    assert augmentation_robust_score(known, 1.0).value == pytest.approx(normalised(0.2))


def test_paired_runs_are_the_sample() -> None:
    known = groups(
        WHOLE=[0.8, 0.9, 0.85], HARD=[0.5, 0.6, 0.55], OWN=[0.6, 0.7, 0.62], RANDOM=[0.3, 0.3, 0.4]
    )

    recovery = hard_label_recovery(known)
    score = ranking_score(known)

    # each run loses 0.3, so there is no spread, however much accuracies move together
    assert (recovery.value, recovery.low, recovery.high) == pytest.approx((0.3, 0.3, 0.3))
    of_runs = mean_and_ci([0.5 * ior - 0.5 * 0.3 for ior in (0.3, 0.4, 0.22)])
    assert (score.value, score.low, score.high) == pytest.approx(
        tuple(normalised(x) for x in (of_runs.mean, of_runs.low or 0, of_runs.high or 0))
    )


def test_runs_that_do_not_pair_propagate_their_variances_as_welch_does() -> None:
    a, b = [0.80, 0.84, 0.88, 0.86], [0.50, 0.58, 0.51]
    known = {Role.WHOLE: runs("w", a), Role.HARD: runs("h", b)}

    recovery = hard_label_recovery(known)

    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (recovery.low, recovery.high) == pytest.approx((welch.low, welch.high))
    assert recovery.value == pytest.approx(statistics.fmean(a) - statistics.fmean(b))


def test_same_numbers_of_other_runs_do_not_pair() -> None:
    a, b = [0.8, 0.9], [0.5, 0.6]
    paired = {Role.WHOLE: runs("w", a), Role.HARD: runs("h", b)}
    apart = {Role.WHOLE: runs("w", a), Role.HARD: runs("h", {"7": 0.5, "8": 0.6})}

    one, other = hard_label_recovery(paired), hard_label_recovery(apart)

    assert one.value == pytest.approx(other.value)
    assert one.high == pytest.approx(0.3)
    assert other.high is not None
    assert other.high > 0.5


def test_group_in_two_roles_counts_once_with_its_whole_coefficient() -> None:
    # With hard labels as its own protocol the distilled set is in HLR and in IOR: its coefficient
    # in α is w + (1 - w) = 1.
    own = [0.50, 0.54, 0.56]
    known = {
        Role.OWN: runs("same", own),
        Role.HARD: runs("same", own),
        Role.RANDOM: runs("random", {"a": 0.3, "b": 0.3}),
        Role.WHOLE: runs("whole", {"c": 0.8, "d": 0.8}),
    }

    score = ranking_score(known)

    # only the distilled runs vary: the interval of α is theirs, moved
    half = (mean_and_ci(own).high or 0) - mean_and_ci(own).mean
    alpha = statistics.fmean(own) - 0.5 * 0.3 - 0.5 * 0.8
    assert score.value == pytest.approx(normalised(alpha))
    assert score.high == pytest.approx(normalised(alpha + half))
    assert (score.present, score.expected) == (7, 7)


def test_interval_of_unpaired_runs_covers_the_truth_as_often_as_it_says() -> None:
    stream = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        whole = np.clip(stream.normal(0.8, 0.02, 5), 0, 1).tolist()
        hard = np.clip(stream.normal(0.5, 0.06, 4), 0, 1).tolist()
        found = hard_label_recovery({Role.WHOLE: runs("w", whole), Role.HARD: runs("h", hard)})
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.3 <= found.high

    # 95 % of 400 is 380, with a deviation of 4.4
    assert 362 <= hits <= 397


def test_set_compared_with_itself_gains_nothing() -> None:
    same = runs("same", [0.4, 0.5])

    found = improvement_over_random({Role.OWN: same, Role.RANDOM: same})

    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_missing_runs_are_told_and_missing_groups_undefine() -> None:
    partly = {Role.WHOLE: runs("w", [0.8], expected=2), Role.HARD: runs("h", [0.5])}
    nothing = partly | {Role.WHOLE: runs("w", [], expected=2)}

    one, none = hard_label_recovery(partly), hard_label_recovery(nothing)

    assert one.value == pytest.approx(0.3)
    assert (one.present, one.expected) == (2, 3)
    assert one.reason == "1 of 2 networks of whole-hard not yet measured"
    assert (none.value, none.present, none.expected) == (None, 1, 3)
    assert none.reason == "2 of 2 networks of whole-hard not yet measured"


def test_order_of_runs_does_not_matter() -> None:
    values = {"0": 0.81, "1": 0.87, "2": 0.83}
    forwards = {Role.WHOLE: runs("w", values), Role.HARD: runs("h", [0.5, 0.6])}
    backwards = {
        Role.HARD: runs("h", {"1": 0.6, "0": 0.5}),
        Role.WHOLE: runs("w", dict(reversed(values.items()))),
    }

    assert hard_label_recovery(forwards) == hard_label_recovery(backwards)


@pytest.mark.parametrize("percent", [84.8, 1.0001, -0.1, math.nan])
def test_accuracies_that_are_no_fractions_are_refused(percent: float) -> None:
    known = {role: runs(role, [value]) for role, value in WORKED.items()}

    with pytest.raises(InvalidData, match=r"accuracy of whole-hard is .* not percent"):
        ranking_score(known | {Role.WHOLE: runs("w", [percent])})
    with pytest.raises(InvalidData, match="weight"):
        ranking_score(known, weight=1.5)
    with pytest.raises(InvalidData, match="gamma"):
        augmentation_robust_score(known, gamma=-1)
