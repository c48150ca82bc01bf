"""Metrics by name: over what each is computed, in which unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass

from overproof.core.registry import Params, PluginInfo, Registry


@dataclass(frozen=True, kw_only=True)
class MetricInfo(PluginInfo):
    """A metric.

    Attributes:
        unit: `fraction` in [0, 1] unless the name says otherwise.
        higher_is_better: for sorting and colours.
        scope: `network`, `distilled-set` (means and intervals over seeds) or `transfer-matrix`.
    """

    unit: str
    higher_is_better: bool
    scope: str
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


for _info in (
    MetricInfo(
        name="network-robustness",
        target="overproof.evaluation.robustness:network_robustness",
        summary="clean accuracy, robust accuracy and drop rate of one network, for each cell",
        source="DD-RobustBench, equation 1",
        unit="fraction",
        higher_is_better=True,
        scope="network",
    ),
    MetricInfo(
        name="set-robustness",
        target="overproof.evaluation.robustness:set_robustness",
        summary="means and 95 % intervals over seeds of the robustness of a distilled set",
        source="DD-RobustBench, equation 1",
        unit="fraction",
        higher_is_better=True,
        scope="distilled-set",
    ),
):
    METRICS.add(_info)
