"""Metrics by name: what each means, in which unit, and which way is better.

A metric is one quantity. Its target computes it for one network; over a group it is the mean over
seeds of those numbers, so a rate is never a quotient of means.
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
            over seeds), `transfer-matrix`.
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
RELIABILITY_WARNING = "reliability-warning"

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
        name=RELIABILITY_WARNING,
        target="overproof.evaluation.reliability:network_warnings",
        summary="share of networks whose robust accuracy is in doubt, for each kind of doubt",
        source="fra31/auto-attack, checks.py; overproof.evaluation.reliability",
        unit="fraction",
        higher_is_better=False,
        scopes=("network", "distilled-set"),
    ),
):
    METRICS.add(_info)
