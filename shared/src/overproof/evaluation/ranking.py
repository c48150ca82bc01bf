"""How informative a distilled set is: what hard labels lose, what distilling gains, one score.

Each number is a sum of accuracies with coefficients, so that its interval follows from the runs of
the groups in it: see `combination`. Plain values in and out.

Source: DD-Ranking, arXiv:2505.13300, sections 3 and 4. Differs: accuracies are fractions, since
the scores are only bounded for those; the score is that of the mean accuracies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from overproof.core.ranking import Role
from overproof.errors import InvalidData
from overproof.evaluation.intervals import CONFIDENCE, Interval, mean_and_ci
from overproof.evaluation.robustness import SeedMean


@dataclass(frozen=True)
class GroupRuns:
    """Accuracies of one group of networks.

    Attributes:
        group: its id: one group in two roles is the same runs.
        runs: run → accuracy, a fraction; runs of several groups pair where all have the same.
        present, expected: networks in them, and networks that belong to the group.
    """

    group: str
    runs: Mapping[str, float]
    present: int
    expected: int


Groups = Mapping[Role, GroupRuns]


def hard_label_recovery(groups: Groups) -> SeedMean:
    """HLR: accuracy of the whole set less that of the distilled one, both with hard labels.

    A fraction in [-1, 1]; lower is better.

    Raises:
        InvalidData: an accuracy outside [0, 1].
    """
    return combination(groups, {Role.WHOLE: 1.0, Role.HARD: -1.0})


def improvement_over_random(groups: Groups) -> SeedMean:
    """IOR: accuracy of the distilled set less that of random images, both by its own protocol.

    A fraction in [-1, 1]; higher is better.

    Raises:
        InvalidData: an accuracy outside [0, 1].
    """
    return combination(groups, {Role.OWN: 1.0, Role.RANDOM: -1.0})


def ranking_score(groups: Groups, weight: float = 0.5) -> SeedMean:
    """DDRS: α = w · IOR − (1 − w) · HLR, brought to [0, 1]; higher is better.

    Args:
        groups: with the roles of HLR and IOR.
        weight: w in [0, 1].

    Raises:
        InvalidData: an accuracy or `weight` outside [0, 1].
    """
    w = _fraction(weight, "the weight of a score")
    return _scored(
        combination(
            groups,
            {Role.OWN: w, Role.RANDOM: -w, Role.WHOLE: w - 1, Role.HARD: 1 - w},
        )
    )


def augmentation_robust_score(groups: Groups, gamma: float = 0.5) -> SeedMean:
    """ARS: γ · IOR with augmentation + (1 − γ) · IOR without, brought to [0, 1].

    Args:
        groups: with the roles of IOR, with augmentation and plain.
        gamma: γ in [0, 1].

    Raises:
        InvalidData: an accuracy or `gamma` outside [0, 1].
    """
    g = _fraction(gamma, "gamma of a score")
    return _scored(
        combination(
            groups,
            {Role.OWN: g, Role.RANDOM: -g, Role.OWN_PLAIN: 1 - g, Role.RANDOM_PLAIN: g - 1},
        )
    )


def normalised(alpha: float) -> float:
    """(e^α − e^−1) / (e − e^−1): 0 at α = −1, 1 at α = 1, rising in between."""
    return (math.exp(alpha) - math.exp(-1)) / (math.e - math.exp(-1))


def combination(groups: Groups, coefficients: Mapping[Role, float]) -> SeedMean:
    """Σ coefficient · accuracy over roles, with its 95 % interval.

    Where all groups have the same runs, the sum is made for each run and the runs are the sample
    of Student's t. Else the groups are independent samples: variances of their means add up, each
    times the square of its coefficient, with the degrees of freedom of Welch and Satterthwaite.
    Either way a group in two roles counts once, with the sum of its coefficients.

    Args:
        groups: what is known; a group without runs leaves the sum undefined.
        coefficients: of each role in the sum.

    Returns:
        The sum; no interval where a group that matters has a single run.

    Raises:
        InvalidData: an accuracy outside [0, 1].
        KeyError: a role without a group.

    Source: Satterthwaite 1946; Welch 1947.
    """
    distinct: dict[str, GroupRuns] = {}
    totals: dict[str, float] = {}
    missing: dict[str, None] = {}
    for role, coefficient in coefficients.items():
        member = groups[role]
        distinct[member.group] = member
        totals[member.group] = totals.get(member.group, 0.0) + coefficient
        for value in member.runs.values():
            _fraction(value, f"accuracy of {role}")
        if member.present < member.expected or not member.runs:
            missing[_missing(role, member)] = None
    present = sum(member.present for member in distinct.values())
    expected = sum(member.expected for member in distinct.values())
    reason = "; ".join(missing) or None
    if not all(member.runs for member in distinct.values()):
        return SeedMean(None, None, None, present, expected, reason)
    terms = [
        (coefficient, member.runs)
        for group, member in sorted(distinct.items())
        if (coefficient := totals[group])
    ]
    interval = _interval(terms)
    return SeedMean(interval.mean, interval.low, interval.high, present, expected, reason)


def _interval(terms: list[tuple[float, Mapping[str, float]]]) -> Interval:
    if not terms:  # all coefficients cancelled: a set compared with itself
        return Interval(0.0, 0.0, 0.0, 0)
    first = terms[0][1].keys()
    if all(runs.keys() == first for _, runs in terms):
        return mean_and_ci([sum(c * runs[run] for c, runs in terms) for run in sorted(first)])
    mean = sum(c * statistics.fmean(runs.values()) for c, runs in terms)
    fewest = min(len(runs) for _, runs in terms)
    if fewest == 1:
        return Interval(mean, None, None, 1)
    parts = [
        (c**2 * statistics.variance(runs.values()) / len(runs), len(runs) - 1) for c, runs in terms
    ]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Interval(mean, mean, mean, fewest)
    freedom = variance**2 / sum(part**2 / each for part, each in parts)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, fewest)


def _scored(alpha: SeedMean) -> SeedMean:
    """`alpha` with value and ends brought to the scale of scores, which keeps their order."""
    return replace(
        alpha,
        value=None if alpha.value is None else normalised(alpha.value),
        low=None if alpha.low is None else normalised(alpha.low),
        high=None if alpha.high is None else normalised(alpha.high),
    )


def _fraction(value: float, what: str) -> float:
    if not 0 <= value <= 1:
        raise InvalidData(f"{what} is {value}; it must be a fraction in [0, 1], not percent")
    return value


def _missing(role: Role, member: GroupRuns) -> str:
    absent = member.expected - member.present
    return f"{absent} of {member.expected} networks of {role} not yet measured"
