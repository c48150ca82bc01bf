"""docs/results.md, written from the raw numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.results.numbers import SEMANTICS
from benchmarks.results.studies import BASELINE, FOLDER, Study, source_of
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.metrics import CLEAN_ACCURACY
from overproof.evaluation.intervals import mean_and_ci
from overproof.report.ranking import LEGEND as RANKING_LEGEND
from overproof.report.standings import Measured
from overproof.report.text import LEGEND, percent


def page(studies: Sequence[Study]) -> str:
    """The Markdown page of studies whose numbers are there."""
    lines = ["# Results", "", "Written by `make results` from the raw numbers beside it.", ""]
    for study in studies:
        numbers = json.loads(study.numbers.read_text())
        lines += [f"## {study.title}", "", *_facts(study, numbers), *_gains(numbers)]
        lines += [study.remark, ""] if study.remark else []
        lines += _rankings(numbers) + _under_attack(numbers) + _settings(numbers)
    return "\n".join(lines)


def _facts(study: Study, numbers: Mapping[str, Any]) -> list[str]:
    spec, machine = numbers["spec"], numbers["machine"]
    words = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "load")
    (dataset,), (network,) = spec["datasets"], spec["networks"]
    variable, _ = source_of(study.dataset)
    return [
        f"- Commands: `overproof data add {study.dataset} PATH`, `overproof run {study.example}`; "
        f"`make results` runs both, the path is that of {variable}",
        f"- Data: {study.says}; the first {dataset['subset_per_class']} training and "
        f"{dataset['test_subset_per_class']} test images of each class",
        f"- Network and protocol: {_plugin(network)}, trained by {_plugin(spec['protocol'])}",
        f"- Seeds: {', '.join(map(str, spec['seeds']))}; a seed varies the distilled or random "
        "images, the network and its training together",
        f"- Date and code: {numbers['date']}, {numbers['commit']}",
        f"- Machine: {words}",
        f"- Time: {numbers['seconds'] / 60:.0f} minutes from the first job to the last; the "
        f"machine's load was {machine['load']} when this was written",
        f"- Raw numbers, network by network: [{study.numbers.name}]"
        f"({FOLDER.name}/{study.numbers.name})",
        "",
    ]


def _gains(numbers: Mapping[str, Any]) -> list[str]:
    """Clean accuracy of every method beside that of the baseline."""
    return [
        "IOR is the accuracy less that of networks trained by the same protocol on as many random "
        "images, in points, paired over the seeds with the 95 % interval of Student's t. Seconds "
        "are the mean of making one set, experts and other preparations not included.",
        "",
        *_table(
            ["method", "images a class", "accuracy %", "IOR", "95 % interval", "seconds a set"],
            [_row_of_gains(method) for method in numbers["methods"]],
        ),
        "",
    ]


def _row_of_gains(method: Mapping[str, Any]) -> list[str]:
    accuracies = [each["metrics"][CLEAN_ACCURACY] for each in method["networks"]]
    found = mean_and_ci(accuracies)
    spread = f" ± {100 * (found.high - found.mean):.1f}" if found.high is not None else ""
    gain = next((row for row in method["differences"] if row["metric"] == CLEAN_ACCURACY), None)
    return [
        method["method"],
        str(method["images_per_class"]),
        f"{100 * found.mean:.1f}{spread}",
        "" if gain is None else f"{100 * gain['mean']:+.1f}",
        "" if gain is None else _interval(gain),
        "-" if method["seconds_a_set"] is None else f"{method['seconds_a_set']:.0f}",
    ]


def _rankings(numbers: Mapping[str, Any]) -> list[str]:
    """How sets rank; nothing where they were not ranked."""
    if not numbers.get("rankings"):
        return []
    return [
        RANKING_LEGEND,
        "",
        *_table(
            ["method", "HLR %", "IOR %"],
            [
                [row["method"], *(percent(Measured(**row[name])) for name in ("hlr", "ior"))]
                for row in numbers["rankings"]
            ],
        ),
        "",
    ]


def _under_attack(numbers: Mapping[str, Any]) -> list[str]:
    """What methods gain over the baseline under attack; nothing without attacks."""
    rows = [
        [
            method["method"],
            row["metric"],
            row["slice"].rpartition(":")[0],
            f"{100 * fmean(_values(method, row)):.1f}",
            f"{100 * row['mean']:+.1f}",
            _interval(row),
        ]
        for method in numbers["methods"]
        for row in method["differences"]
        if row["slice"]
    ]
    if not rows:
        return []
    return [
        f"Under attack, less the same number of {BASELINE}. For drop rates below 0 is better. "
        f"{LEGEND} The table shows {SEMANTICS}.",
        "",
        *_table(["method", "metric", "attack", "%", "difference", "95 % interval"], rows),
        "",
    ]


def _values(method: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[float]:
    for network in method["networks"]:
        yield network["metrics"][f"{row['metric']} {row['slice']}".strip()]


def _settings(numbers: Mapping[str, Any]) -> list[str]:
    """Every parameter that is not the published one."""
    rows = [
        [method["method"], name, str(value), _default(method["method"], name)]
        for method in numbers["methods"]
        for name, value in method["params"].items()
    ]
    return [
        "Settings scaled for the small size, beside their defaults, which are the published ones; "
        "None is looked up by data set and size.",
        "",
        *_table(["method", "setting", "here", "default"], rows),
        "",
    ]


def _default(method: str, name: str) -> str:
    return str(DISTILLATION.get(method).params.model_fields[name].default)


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return ""
    return f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f}"


def _plugin(ref: Mapping[str, Any]) -> str:
    params = ", ".join(f"{name} {value}" for name, value in ref["params"].items())
    return f"`{ref['name']}`" + (f" ({params})" if params else "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
