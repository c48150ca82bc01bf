"""Experts from the plan to a distilled set and the networks that are trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from overproof.core.ids import UnitId
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.errors import InvalidSpec, ShuttingDown
from overproof.experiments.planner import batch, plan
from overproof.handlers.attack import WhiteBoxHandler
from overproof.handlers.distill import SynthesisHandler
from overproof.handlers.experts import ExpertsHandler
from overproof.handlers.train import NetworksHandler
from overproof.runtime.handler import UnitOutput
from tests.builders import an_experiment, no_added_datasets

Contexts = Callable[..., Any]

SMALL = {
    "experts": 2,
    "expert_epochs": 3,
    "expert_batch": 64,
    "expert_learning_rate": 0.05,
    "iterations": 3,
    "inner_steps": 2,
    "matched_epochs": 1,
    "start_epochs": 2,
}
METHODS = [{"name": name, "params": SMALL} for name in ("mtt", "tesla", "datm")]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def an_experiment_with_experts(**over: Any) -> ExperimentSpec:
    values: dict[str, Any] = {
        "datasets": {"name": "digits", "subset_per_class": 20, "test_subset_per_class": 5},
        "methods": METHODS,
        "networks": [{"name": "convnet", "params": {"width": 4, "depth": 2}}],
        "attacks": [],
        "seeds": [0],
    }
    return an_experiment(**values | over)


def by_task(spec: ExperimentSpec) -> Mapping[str, list[Unit]]:
    units: dict[str, list[Unit]] = {}
    for unit in plan(spec, no_added_datasets).units:
        units.setdefault(unit.task, []).append(unit)
    return units


def outputs_of(handler: Any, context: Any, *units: Unit) -> Mapping[UnitId, UnitOutput]:
    made: Mapping[UnitId, UnitOutput] = handler.run(JobSpec.of(units), context)
    return made


def test_methods_sizes_and_seeds_share_their_experts() -> None:
    units = by_task(an_experiment_with_experts(images_per_class=[1, 2], seeds=[0, 1]))

    assert {task: len(of_task) for task, of_task in units.items()} == {
        "experts": 2,
        "synthesis": 12,
        "networks": 12,
    }
    expert_ids = {unit.id for unit in units["experts"]}
    assert all(set(unit.needs) == expert_ids for unit in units["synthesis"])
    assert all(set(unit.body["experts"]) == expert_ids for unit in units["synthesis"])


def test_other_experts_are_other_units_and_other_sets() -> None:
    longer = [{"name": "mtt", "params": SMALL | {"expert_epochs": 4}}]
    units = by_task(an_experiment_with_experts(methods=[METHODS[0], *longer]))

    assert len(units["experts"]) == 4
    assert len({unit.id for unit in units["synthesis"]}) == 2


def test_methods_without_experts_have_none_in_their_bodies() -> None:
    units = by_task(an_experiment_with_experts(methods=["random"]))

    assert set(units) == {"synthesis", "networks"}
    assert "experts" not in units["synthesis"][0].body


@pytest.mark.parametrize("method", ["mtt", "tesla", "datm"])
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"start_epochs": 3, "matched_epochs": 2}, "stretches end after epoch 4, experts after 3"),
        ({"start_epochs": 2}, "need start_epochs and matched_epochs"),
    ],
)
def test_experts_that_are_too_short_are_refused_before_they_are_trained(
    method: str, params: dict[str, int], message: str
) -> None:
    short = [{"name": method, "params": {"expert_epochs": 3} | params}]

    with pytest.raises(InvalidSpec, match=message):
        by_task(an_experiment_with_experts(methods=short))


def test_whitened_sets_follow_whitened_experts_and_are_attacked_in_pixels(
    a_context: Contexts,
) -> None:
    whitened = [{"name": "mtt", "params": SMALL | {"zca": True}}]
    attacks = [{"name": "pgd", "epsilons": ["0", "32/255"], "params": {"steps": 3}}]
    units = by_task(an_experiment_with_experts(methods=whitened, attacks=attacks))
    plain = by_task(an_experiment_with_experts(methods=METHODS[:1]))
    made = dict(outputs_of(ExpertsHandler(), a_context("experts"), *units["experts"]))
    made |= outputs_of(SynthesisHandler(), a_context("set", made), *units["synthesis"])
    made |= outputs_of(NetworksHandler(), a_context("network", made), *units["networks"])
    made |= outputs_of(WhiteBoxHandler(), a_context("cells", made), *units["white-box"])

    weights = load_file(made[UnitId(units["networks"][0].id)].files["weights"])
    images = load_file(made[UnitId(units["synthesis"][0].id)].files["images"])
    none, some = sorted(units["white-box"], key=lambda unit: len(unit.body["threat"]["epsilon"]))
    assert not {unit.id for unit in units["experts"]} & {unit.id for unit in plain["experts"]}
    assert all("zca" not in unit.body for unit in plain["experts"])
    assert torch.equal(weights["matrix"], images["zca_matrix"])
    clean = made[UnitId(units["networks"][0].id)].result["clean_correct"]
    assert made[UnitId(none.id)].result["robust_s2"] == clean
    assert made[UnitId(some.id)].result["robust_s2"] < clean
    moved = load_file(made[UnitId(some.id)].files["outcomes"])["distance"]
    assert 30 / 255 < float(moved.max()) <= 32 / 255 + 1e-6


def test_experts_come_in_jobs_of_ten() -> None:
    many = [{"name": "mtt", "params": SMALL | {"experts": 23}}]
    jobs = batch(by_task(an_experiment_with_experts(methods=many))["experts"])

    assert Counter(len(job.units) for job in jobs) == {10: 2, 3: 1}


def test_trajectory_begins_at_the_initial_network_and_moves_in_every_epoch(
    a_context: Contexts,
) -> None:
    units = by_task(an_experiment_with_experts())["experts"]
    context = a_context()

    outputs = outputs_of(ExpertsHandler(), context, *units)

    first, second = (
        load_file(outputs[UnitId(unit.id)].files["trajectory"])["trajectory"] for unit in units
    )
    result = outputs[UnitId(units[0].id)].result
    assert first.shape == second.shape == (4, result["parameters"])
    assert (first[1:] - first[:-1]).norm(dim=1).min() > 0
    assert not torch.equal(first[0], second[0])
    assert context.steps == [(1, 3), (2, 3), (3, 3)]
    assert (result["epochs"], result["loss"] > 0) == (3, True)


def test_stopped_and_resumed_experts_equal_the_straight_run(a_context: Contexts) -> None:
    units = by_task(an_experiment_with_experts())["experts"]
    straight = outputs_of(ExpertsHandler(), a_context("straight"), *units)

    with pytest.raises(ShuttingDown):
        outputs_of(ExpertsHandler(), a_context("job", stop_after=2, checkpoint_every=1), *units)
    context = a_context("job")
    resumed = outputs_of(ExpertsHandler(), context, *units)

    assert context.steps == [(3, 3)]
    for unit_id, output in straight.items():
        again = resumed[unit_id].files["trajectory"]
        assert again.read_bytes() == output.files["trajectory"].read_bytes()


def test_expert_is_the_same_bytes_whichever_seeds_are_in_the_job(a_context: Contexts) -> None:
    units = by_task(an_experiment_with_experts())["experts"]
    unit_id = UnitId(units[1].id)

    together = outputs_of(ExpertsHandler(), a_context("both"), *units)[unit_id]
    alone = outputs_of(ExpertsHandler(), a_context("alone"), units[1])[unit_id]

    assert alone.files["trajectory"].read_bytes() == together.files["trajectory"].read_bytes()


def test_network_with_batch_statistics_cannot_be_an_expert(a_context: Contexts) -> None:
    networks = [{"name": "convnet", "params": {"width": 4, "depth": 2, "norm": "batch"}}]
    units = by_task(an_experiment_with_experts(networks=networks))["experts"]

    with pytest.raises(InvalidSpec, match="norm: instance"):
        outputs_of(ExpertsHandler(), a_context(), *units)


def test_learned_rate_and_labels_reach_the_networks(a_context: Contexts, tmp_path: Path) -> None:
    units = by_task(an_experiment_with_experts(methods=METHODS[-1:]))
    (distilled,), (network,) = units["synthesis"], units["networks"]
    set_id = UnitId(distilled.id)
    made = dict(outputs_of(ExpertsHandler(), a_context("experts"), *units["experts"]))
    made |= outputs_of(SynthesisHandler(), a_context("set", made), distilled)
    stored = load_file(made[set_id].files["images"])
    variants = {
        "as-made": stored,
        "hard": {name: each for name, each in stored.items() if name != "logits"},
        "fast": stored | {"learning_rate": 2 * stored["learning_rate"]},
    }

    weights = {}
    for name, tensors in variants.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        files = {"images": tmp_path / f"{name}.safetensors"}
        context = a_context(name, {set_id: UnitOutput(files=files)})
        (output,) = outputs_of(NetworksHandler(), context, network).values()
        assert context.facts["learning_rate"] == float(tensors["learning_rate"])
        weights[name] = output.files["weights"].read_bytes()

    assert stored["logits"].shape == (10, 10)
    assert len(set(weights.values())) == 3
