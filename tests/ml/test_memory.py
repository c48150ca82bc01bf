"""The demand of methods against what torch allocates in their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import OutOfMemory
from overproof.ml.devices import free_bytes
from overproof.ml.distill.base import DistillationMethod, Problem
from overproof.ml.memory import Demand, NetworkCosts, Part
from overproof.ml.models.base import build
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.experts import write_trajectory

CPU = torch.device("cpu")
FACTS = ImageFacts(channels=1, size=(8, 8), classes=10, mean=(0.3,), std=(0.4,))


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that torch held in the course of `work` above what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        work()
    held, most = 0, 0
    events = [each for each in run.profiler.kineto_results.events() if each.name() == "[memory]"]
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def method_of(problem: Problem, name: str, **params: Any) -> DistillationMethod[Any]:
    ref = PluginRef(name=name, params=params)
    made: DistillationMethod[Any] = DISTILLATION.load(name)(DISTILLATION.resolve(ref), problem)
    return made


@pytest.fixture
def wide(problem: Problem, tmp_path: Any) -> Problem:
    """A network that is large beside its surroundings, ten images a class and an expert of it."""
    network = PluginRef(name="convnet", params={"width": 32, "depth": 2})
    parameters = build(network, problem.dataset.facts, 0).network.parameters()
    start = torch.cat([each.detach().flatten() for each in parameters])
    snapshots = torch.stack([start, start + 0.01, start + 0.02])
    write_trajectory(snapshots, tmp_path / "expert")
    return replace(problem, network=network, images_per_class=10, experts=[tmp_path / "expert"])


FOLLOWING = {"matched_epochs": 1, "start_epochs": 1, "learning_rate": 1.0}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dm", {"real_batch": 20}),
        ("dsa", {"real_batch": 20, "outer_loop": 2, "inner_loop": 1, "network_batch": 60}),
        ("dsa", {"real_batch": 20, "outer_loop": 1, "inner_loop": 1}),
        ("idm", {"real_batch": 20, "factor": 1, "networks_trained": 1, "training_steps": 1}),
        ("mtt", FOLLOWING | {"inner_steps": 3}),
        ("mtt", FOLLOWING | {"inner_steps": 3, "batch": 25}),
        ("mtt", FOLLOWING | {"inner_steps": 60, "batch": 10}),
        ("sre2l", {"group": 5}),
        ("cda", {}),
    ],
)
def test_demand_is_within_a_factor_of_two_of_what_is_measured(
    wide: Problem, name: str, params: dict[str, Any]
) -> None:
    method = method_of(wide, name, iterations=3, **params)
    for index in range(2):
        method.step(index)

    measured = peak_of(lambda: method.step(2))

    demand = method.demand()
    assert demand is not None
    assert measured / 2 < demand.total < 2 * measured


def test_costs_of_a_network_by_hand() -> None:
    network = build(
        PluginRef(name="convnet", params={"width": 4, "depth": 1, "norm": "none"}), FACTS, 0
    ).network
    parameters = [each.clone() for each in network.parameters()]

    costs = NetworkCosts.of(network, FACTS)

    # 4 · 1 · 3 · 3 + 4 of the convolution, 10 · 4 · 4 · 4 + 10 of the last layer.
    assert costs.parameters == 4 * (36 + 4 + 640 + 10)
    assert costs.image == 4 * 64
    assert costs.largest == 4 * 4 * 64
    # Kept are at least the image, the rectified maps, the pooled ones and the logits.
    assert 4 * (64 + 256 + 64 + 10) <= costs.first < 4 * 4 * (64 + 256 + 64 + 10)
    assert costs.second > costs.first
    assert all(torch.equal(a, b) for a, b in zip(parameters, network.parameters(), strict=True))


def test_refusal_says_in_one_line_what_would_fit() -> None:
    demand = Demand([Part("", 1, 100 << 20), Part("batch", 50, 10 << 20), Part("steps", 9, 1)])

    demand.require(601 << 20, what="mtt", where="cpu")
    with pytest.raises(OutOfMemory) as caught:
        demand.require(300 << 20, what="mtt", where="cpu")

    assert str(caught.value) == (
        "mtt takes about 600 MiB for a step, cpu has 300 MiB free; batch 19 would fit, or take a "
        "larger device"
    )


def test_refusal_of_what_no_smaller_batch_helps_names_the_network() -> None:
    demand = Demand([Part("", 1, 3 << 30), Part("batch", 50, 10)])

    with pytest.raises(OutOfMemory, match=r"about 3\.0 GiB .* use a smaller network"):
        demand.require(1 << 30, what="dm", where="cuda")


def test_machine_has_memory_but_not_without_end() -> None:
    assert 1 << 20 < free_bytes(CPU) < 1 << 50
