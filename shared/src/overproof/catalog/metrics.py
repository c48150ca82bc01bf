"""Metrics by name: what each means, in which unit, and which way is better.

A metric is one quantity. Its target computes it for one network; over a group it is the mean over
seeds of those numbers, so a rate is never a quotient of means. One of a comparison is computed from
the runs of all groups in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from overproof.core.registry import Params, PluginInfo, Registry


@dataclass(frozen=True, kw_only=True)
class MetricInfo(PluginInfo):
    """A metric.

    Attributes:
        unit: `fraction` in [0, 1] unless the name says otherwise.
        higher_is_better: for sorting and colours.
        scopes: over what it is reported: `network`, `distilled-set` (a group: mean and interval
            over seeds), `comparison` (of several groups), `transfer-matrix`.
    """

    unit: str
    higher_is_better: bool
    scopes: tuple[str, ...]
    params: type[Params] = Params


METRICS: Registry = Registry("metrics")


def metric(name: str) -> MetricInfo:
    """The metric called `name`.

    Raises:
        UnknownPlugin: there is none.
    """
    info = METRICS.get(name)
    assert isinstance(info, MetricInfo)
    return info


CLEAN_ACCURACY = "clean-accuracy"
ROBUST_ACCURACY = "robust-accuracy"
DROP_RATE = "drop-rate"
BREAKING_SHARE = "breaking-share"
RELIABILITY_WARNING = "reliability-warning"
HARD_LABEL_RECOVERY = "hard-label-recovery"
IMPROVEMENT_OVER_RANDOM = "improvement-over-random"
RANKING_SCORE = "ranking-score"
AUGMENTATION_ROBUST_SCORE = "augmentation-robust-score"

for _info in (
    MetricInfo(
        name=CLEAN_ACCURACY,
        target="overproof.evaluation.robustness:network_clean_accuracy",
        summary="share of the unchanged test set that is classified rightly",
        source="DD-RobustBench, section III",
        unit="fraction",
        higher_is_better=True,
        scopes=("network", "distilled-set"),
    ),
    MetricInfo(
        name=ROBUST_ACCURACY,
        target="overproof.evaluation.robustness:network_robust_accuracy",
        summary="share of the attacked test set that stays right, for each attack and budget",
        source="DD-RobustBench, section III",
        unit="fraction",
        higher_is_better=True,
        scopes=("network", "distilled-set"),
    ),
    MetricInfo(
        name=DROP_RATE,
        target="overproof.evaluation.robustness:network_drop_rate",
        summary="(clean - robust) / clean, for each attack and budget",
        source="DD-RobustBench, equation 1",
        unit="fraction",
        higher_is_better=False,
        scopes=("network", "distilled-set"),
    ),
    MetricInfo(
        name=BREAKING_SHARE,
        target="overproof.evaluation.robustness:network_breaking_share",
        summary="share of the samples broken by any attack of a budget that this attack broke",
        source="overproof.evaluation.robustness",
        unit="fraction",
        higher_is_better=False,
        scopes=("network", "distilled-set"),
    ),
    MetricInfo(
        name=RELIABILITY_WARNING,
        target="overproof.evaluation.reliability:network_warnings",
        summary="share of networks whose robust accuracy is in doubt, for each kind of doubt",
        source="fra31/auto-attack, checks.py; overproof.evaluation.reliability",
        unit="fraction",
        higher_is_better=False,
        scopes=("network", "distilled-set"),
    ),
    MetricInfo(
        name=HARD_LABEL_RECOVERY,
        target="overproof.evaluation.ranking:hard_label_recovery",
        summary="HLR: accuracy of the whole set less that of the distilled one, with hard labels",
        source="DD-Ranking, arXiv:2505.13300, section 3",
        unit="fraction",
        higher_is_better=False,
        scopes=("comparison",),
        aliases=("hlr",),
    ),
    MetricInfo(
        name=IMPROVEMENT_OVER_RANDOM,
        target="overproof.evaluation.ranking:improvement_over_random",
        summary="IOR: accuracy of the distilled set less that of as many random images",
        source="DD-Ranking, arXiv:2505.13300, section 3",
        unit="fraction",
        higher_is_better=True,
        scopes=("comparison",),
        aliases=("ior",),
    ),
    MetricInfo(
        name=RANKING_SCORE,
        target="overproof.evaluation.ranking:ranking_score",
        summary="DDRS: IOR and HLR in one score in [0, 1]",
        source="DD-Ranking, arXiv:2505.13300, section 3",
        unit="score",
        higher_is_better=True,
        scopes=("comparison",),
        aliases=("ddrs", "lrs"),
    ),
    MetricInfo(
        name=AUGMENTATION_ROBUST_SCORE,
        target="overproof.evaluation.ranking:augmentation_robust_score",
        summary="ARS: IOR with and without augmentation in one score in [0, 1]",
        source="DD-Ranking, arXiv:2505.13300, section 3",
        unit="score",
        higher_is_better=True,
        scopes=("comparison",),
        aliases=("ars",),
    ),
):
    METRICS.add(_info)
