"""D4M from the plan to a distilled set: prototypes are a task of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec, Unit
from overproof.errors import ShuttingDown
from overproof.experiments.planner import batch, plan
from overproof.handlers.distill import SynthesisHandler
from overproof.handlers.prototypes import PrototypesHandler
from overproof.runtime.handler import UnitOutput
from tests.builders import an_experiment, no_added_datasets
from tests.ml.diffusion_weights import write_weights

Contexts = Callable[..., Any]

MEDOID = {"name": "d4m", "params": {"variant": "medoid"}}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def by_task(**over: Any) -> Mapping[str, list[Unit]]:
    values = {
        "datasets": {"name": "digits", "subset_per_class": 20, "test_subset_per_class": 5},
        "attacks": [],
        "seeds": [0],
    }
    units: dict[str, list[Unit]] = {}
    for unit in plan(an_experiment(**values | over), no_added_datasets).units:
        units.setdefault(unit.task, []).append(unit)
    return units


def made_by(handler: Any, context: Any, *units: Unit) -> Mapping[UnitId, UnitOutput]:
    outputs: Mapping[UnitId, UnitOutput] = handler.run(JobSpec.of(units), context)
    assert set(outputs) == {unit.id for unit in units}
    return outputs


def test_sets_that_differ_in_how_images_are_made_share_their_prototypes() -> None:
    strengths = [
        {"name": "d4m", "params": {"weights": "/weights", "strength": strength}}
        for strength in (0.5, 0.7)
    ]

    units = by_task(methods=strengths, images_per_class=[1, 2], seeds=[0, 1])

    assert (len(units["prototypes"]), len(units["synthesis"])) == (4, 8)
    for unit in units["synthesis"]:
        assert unit.needs == (unit.body["prototypes"],)
        assert unit.body["network"] is None


def test_prototypes_of_all_sizes_are_found_in_one_job() -> None:
    units = by_task(methods=[MEDOID], images_per_class=[1, 2, 5], seeds=[0, 1])["prototypes"]

    jobs = batch(units)

    assert sorted(len(job.units) for job in jobs) == [3, 3]
    assert all(len({unit.body["seed"] for unit in job.units}) == 1 for job in jobs)


def test_other_methods_have_no_prototypes_in_their_bodies() -> None:
    units = by_task(methods=["random"])

    assert "prototypes" not in units
    assert "prototypes" not in units["synthesis"][0].body


def test_medoids_need_neither_weights_nor_a_network(a_context: Contexts) -> None:
    units = by_task(methods=[MEDOID], images_per_class=[2])
    prototypes = made_by(PrototypesHandler(), a_context("prototypes"), *units["prototypes"])

    context = a_context("set", prototypes)
    (output,) = made_by(SynthesisHandler(), context, *units["synthesis"]).values()

    (found,) = prototypes.values()
    assert (found.result["classes"], found.result["dimensions"]) == (10, 64)
    assert load_file(output.files["images"])["images"].shape == (20, 1, 8, 8)
    assert (output.result["images"], output.result["steps"]) == (20, 0)


def test_stopped_and_resumed_search_equals_the_straight_one(a_context: Contexts) -> None:
    units = by_task(methods=[MEDOID], images_per_class=[1, 2])["prototypes"]
    straight = made_by(PrototypesHandler(), a_context("straight"), *units)

    with pytest.raises(ShuttingDown):
        made_by(PrototypesHandler(), a_context("job", stop_after=4, checkpoint_every=1), *units)
    context = a_context("job")
    resumed = made_by(PrototypesHandler(), context, *units)

    assert context.steps[0] == (5, 10)
    for unit_id, output in straight.items():
        again = resumed[unit_id].files["prototypes"]
        assert again.read_bytes() == output.files["prototypes"].read_bytes()


def test_images_of_a_pipeline_come_by_way_of_the_plug_in(
    a_context: Contexts, tmp_path: Path
) -> None:
    weights = write_weights(tmp_path / "weights")
    params = {"weights": str(weights), "resolution": 8, "denoising_steps": 3}
    units = by_task(methods=[{"name": "d4m", "params": params}], images_per_class=[1])
    prototypes = made_by(PrototypesHandler(), a_context("prototypes"), *units["prototypes"])

    context = a_context("set", prototypes)
    (output,) = made_by(SynthesisHandler(), context, *units["synthesis"]).values()

    (found,) = prototypes.values()
    images = load_file(output.files["images"])["images"]
    assert found.result["dimensions"] == 4 * 4 * 4
    assert images.shape == (10, 1, 8, 8)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert context.steps == [(1, 2), (2, 2)]
    shown = sorted(path.name for path in context.shown.glob("*.png"))
    assert shown == [f"images-{step:012d}.png" for step in range(3)]
