"""The numbers of a finished experiment, as they are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.results.studies import BASELINE
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.metrics import CLEAN_ACCURACY, DROP_RATE, ROBUST_ACCURACY
from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.slices import ALL, Slice
from overproof.core.ids import ExperimentId
from overproof.core.semantics import Semantics
from overproof.core.spec import PluginRef
from overproof.core.states import JobKind
from overproof.evaluation.intervals import mean_and_ci
from overproof.report.ranking import rankings
from overproof.report.standings import standings, to_records
from overproof.results.repository import ResultsRepository
from overproof.results.views import UnitRow

SEMANTICS = Semantics.S2

Metrics = Mapping[tuple[str, str, str], float | None]  # network, metric, slice → value


def numbers_of(repository: ResultsRepository, experiment_id: ExperimentId) -> dict[str, Any]:
    """Everything that the page tells of an experiment.

    `methods` in the order of the spec, each with its `networks`, one a seed, and `differences`:
    what each metric gains over the baseline, seed by seed.
    """
    units = repository.units(experiment_id)
    spec = repository.experiment(experiment_id).spec
    protocol = PROTOCOLS.canonical(PluginRef.model_validate(spec["protocol"]))
    sets: dict[str, UnitRow] = {unit.unit_id: unit for unit in units if unit.task == "synthesis"}
    networks = [
        unit
        for unit in units
        if unit.task == "networks"
        and isinstance(unit.body["training_set"], str)  # else it is a whole data set
        and PluginRef.model_validate(unit.body["protocol"]) == protocol
    ]
    metrics = {
        (row.subject, row.metric, row.slice): row.value
        for row in repository.metrics([unit.unit_id for unit in networks])
    }
    by_method: dict[str, dict[int, UnitRow]] = {}
    for network in networks:
        method = sets[network.body["training_set"]].body["method"]["name"]
        by_method.setdefault(method, {})[network.body["seed"]] = network
    order = [DISTILLATION.get(each["name"]).name for each in spec["methods"]]
    rows = standings(repository.leaderboard(experiment_id), SEMANTICS)
    return {
        "seconds": _seconds(repository, units),
        "leaderboard": to_records(rows),
        "rankings": [
            {"method": each.method, "hlr": vars(each.hlr), "ior": vars(each.ior)}
            for each in rankings(repository, rows, experiment_id)
        ],
        "methods": [_method(by_method[name], by_method[BASELINE], sets, metrics) for name in order],
        "prepared": [
            {"task": unit.task, "unit": unit.unit_id, "result": dict(unit.result)}
            for unit in units
            if unit.kind is not JobKind.ATTACK and unit.unit_id not in sets and unit not in networks
        ],
    }


def _method(
    networks: Mapping[int, UnitRow],
    baseline: Mapping[int, UnitRow],
    sets: Mapping[str, UnitRow],
    metrics: Metrics,
) -> dict[str, Any]:
    of_seed = {seed: sets[unit.body["training_set"]] for seed, unit in sorted(networks.items())}
    first = next(iter(of_seed.values()))
    ref = PluginRef.model_validate(first.body["method"])
    fields = DISTILLATION.get(ref.name).params.model_fields
    numbers = {
        seed: {
            f"{metric} {of_slice}".strip(): value
            for (subject, metric, of_slice), value in sorted(metrics.items())
            if subject == unit.unit_id
        }
        for seed, unit in sorted(networks.items())
    }
    return {
        "method": ref.name,
        "params": {
            name: value for name, value in ref.params.items() if value != fields[name].default
        },
        "images_per_class": first.body["images_per_class"],
        "training_images": first.result["training_images"],
        "seconds_a_set": fmean(unit.result["cost"]["seconds"] for unit in of_seed.values()),
        "networks": [
            {
                "seed": seed,
                "set": of_seed[seed].unit_id,
                "network": networks[seed].unit_id,
                "loss_of_set": of_seed[seed].result["loss"],
                "seconds_of_set": of_seed[seed].result["cost"]["seconds"],
                "seconds_of_training": networks[seed].result["cost"]["seconds"],
                "metrics": values,
            }
            for seed, values in numbers.items()
        ],
        "differences": []
        if networks == baseline
        else list(_differences(networks, baseline, metrics)),
    }


def _differences(
    networks: Mapping[int, UnitRow], baseline: Mapping[int, UnitRow], metrics: Metrics
) -> Iterator[dict[str, Any]]:
    """What each metric gains over the baseline, seed by seed; clean accuracy first."""
    wanted = {
        (metric, of_slice)
        for _, metric, of_slice in metrics
        if (metric == CLEAN_ACCURACY and of_slice == ALL)
        or (metric in {ROBUST_ACCURACY, DROP_RATE} and Slice.parse(of_slice).semantics is SEMANTICS)
    }
    for metric, of_slice in sorted(wanted, key=_order):
        gains = []
        for seed, unit in sorted(networks.items()):
            ours = metrics[unit.unit_id, metric, of_slice]
            theirs = metrics[baseline[seed].unit_id, metric, of_slice]
            if ours is None or theirs is None:
                raise ValueError(f"{metric} {of_slice} of seed {seed} has no value")
            gains.append(ours - theirs)
        yield {"metric": metric, "slice": of_slice, **vars(mean_and_ci(gains)), "gains": gains}


def _order(number: tuple[str, str]) -> tuple[int, str, float]:
    metric, text = number
    if metric == CLEAN_ACCURACY:
        return (0, "", 0.0)
    cell = Slice.parse(text)
    return (1 if metric == ROBUST_ACCURACY else 2, cell.attack, cell.radius)


def _seconds(repository: ResultsRepository, units: Sequence[UnitRow]) -> float:
    """From the start of the first job to the end of the last."""
    jobs = {unit.job_id for unit in units}
    attempts = [attempt for job_id in jobs for attempt in repository.attempts(job_id)]
    ends = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
    return max(ends) - min(attempt.started_at for attempt in attempts)
