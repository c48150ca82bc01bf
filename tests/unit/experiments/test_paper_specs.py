"""The specs of published benchmarks plan what their papers count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from overproof.core.spec import ExperimentSpec
from overproof.core.states import JobKind
from overproof.experiments.planner import ExperimentPlan, plan

PAPERS = Path(__file__).parents[3] / "examples" / "papers"


def planned(name: str) -> ExperimentPlan:
    return plan(ExperimentSpec.read(PAPERS / f"{name}.yaml"), lambda _: "0" * 64)


def groups_of(made: ExperimentPlan, **facts: Any) -> list[dict[str, Any]]:
    def value(group: Any, name: str) -> Any:
        found = group[name]
        return found["name"] if isinstance(found, dict) else found

    return [
        dict(group)
        for group in made.groups.values()
        if all(value(group, name) == wanted for name, wanted in facts.items())
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whole_matrix_of_dd_robustbench() -> None:
    spec = ExperimentSpec.read(PAPERS / "dd_robustbench.yaml")
    made = planned("dd_robustbench")

    datasets, methods, sizes = len(spec.datasets), len(spec.methods), 5
    assert datasets == 10
    lines = datasets * (methods * sizes + 1)
    assert len(made.groups) == lines
    kinds = Counter((unit.kind, unit.task) for unit in made.units)
    assert kinds[JobKind.DISTILL, "synthesis"] == datasets * methods * sizes
    assert kinds[JobKind.TRAIN, "networks"] == 5 * lines
    # five attacks at three budgets, AutoAttack and its four parts at four
    assert kinds[JobKind.ATTACK, "white-box"] == 5 * lines * (5 * 3 + 5 * 4)
    depths = {
        group["dataset"]["name"]: group["network"]["params"]["depth"]
        for group in made.groups.values()
        if group["network"]["name"] == "convnet"
    }
    assert (depths["cifar-100"], depths["tiny-imagenet"], depths["imagemeow"]) == (3, 4, 5)
    taught = {
        (group["dataset"]["name"], group["method"]["name"]): (
            group["network"]["name"],
            group["protocol"]["name"],
        )
        for group in made.groups.values()
        if group["method"] and group["protocol"]["name"].startswith("fkd")
    }
    assert len(taught) == 2 * datasets
    assert taught["cifar-10", "latent-diffusion"] == ("convnet", "fkd-small")
    assert taught["tiny-imagenet", "latent-diffusion"] == ("resnet-18", "fkd-tiny")
    assert taught["imagenette", "squeeze-recover-relabel"] == ("resnet-18", "fkd")


def test_networks_are_augmented_where_the_method_was() -> None:
    made = planned("dd_robustbench_cifar10_small")

    strategies = {
        (group["method"] or {"name": None})["name"]: group["protocol"]["params"]["strategy"]
        for group in made.groups.values()
    }
    assert strategies == {
        None: "none",
        "random": "none",
        "gradient-matching": "none",
        "siamese-augmentation": "auto",
        "distribution-matching": "auto",
    }
    selections = {group["protocol"]["params"]["selection"] for group in made.groups.values()}
    assert selections == {"paper"}


def test_architectures_are_trained_on_the_same_sets() -> None:
    made = planned("dd_robustbench_architectures")

    sets = Counter(unit.task for unit in made.units)["synthesis"]
    networks = {group["network"]["name"] for group in made.groups.values()}
    assert sets == 7
    assert networks == {"convnet", "resnet-18", "vgg-11", "mobilenet-v2"}
    assert len(made.groups) == 4 * (7 + 1)


def test_components_are_lines_of_their_own() -> None:
    made = planned("dd_robustbench_components")

    single = groups_of(made, method="siamese-augmentation")
    assert sorted(group["protocol"]["params"]["strategy"] for group in single) == [
        *("auto", "color", "crop", "cutout", "flip", "rotate", "scale")
    ]
    assert all(
        group["method"]["params"]["strategy"] == group["protocol"]["params"]["strategy"]
        for group in single
    )
    assert len(groups_of(made, method="efficient-parameterization")) == 4
    assert len(groups_of(made, method="representative-matching")) == 4
    assert len(made.groups) == 7 + 1 + 4 + 4
