"""Teachers and their labels from the plan to the networks that are trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overproof.core.ids import UnitId
from overproof.core.spec import ExperimentSpec, JobSpec, Unit
from overproof.errors import InvalidSpec, MalformedArtifact, ShapeError, ShuttingDown
from overproof.experiments.planner import plan
from overproof.handlers.distill import SynthesisHandler
from overproof.handlers.soft_labels import SoftLabelsHandler
from overproof.handlers.teachers import TeachersHandler
from overproof.handlers.train import NetworksHandler
from overproof.runtime.handler import UnitOutput
from tests.builders import an_experiment, no_added_datasets

Contexts = Callable[..., Any]
Outputs = dict[UnitId, UnitOutput]

CONVNET = {"name": "convnet", "params": {"width": 4, "depth": 2}}
FKD = {"name": "fkd", "params": {"epochs": 3, "batch_size": 8, "temperature": 4.0}}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def taught(**over: Any) -> ExperimentSpec:
    values: dict[str, Any] = {
        "datasets": {"name": "digits", "subset_per_class": 20, "test_subset_per_class": 5},
        "methods": ["random"],
        "networks": [CONVNET],
        "protocol": FKD,
        "teacher_protocol": {"name": "squeeze", "params": {"epochs": 4, "batch_size": 32}},
        "attacks": [],
        "seeds": [0],
    }
    return an_experiment(**values | over)


def by_task(spec: ExperimentSpec) -> Mapping[str, list[Unit]]:
    units: dict[str, list[Unit]] = {}
    for unit in plan(spec, no_added_datasets).units:
        units.setdefault(unit.task, []).append(unit)
    return units


def outputs_of(handler: Any, context: Any, *units: Unit) -> Outputs:
    return dict(handler.run(JobSpec.of(units), context))


def made_before(units: Mapping[str, list[Unit]], a_context: Contexts) -> Outputs:
    """Outputs of the teacher and of the first set."""
    made = outputs_of(TeachersHandler(), a_context("teacher"), *units["teachers"])
    for unit in units.get("synthesis", [])[:1]:
        made |= outputs_of(SynthesisHandler(), a_context("set", made), unit)
    return made


def test_all_sets_and_sizes_share_one_teacher_and_each_set_has_its_labels() -> None:
    units = by_task(taught(images_per_class=[1, 2], seeds=[0, 1], network_seeds=[0, 1, 2]))

    assert {task: len(of_task) for task, of_task in units.items()} == {
        "teachers": 1,
        "synthesis": 4,
        "soft-labels": 4,
        "networks": 12,
    }
    (teacher,) = units["teachers"]
    assert teacher.body["network"]["params"]["norm"] == "batch"
    for labels in units["soft-labels"]:
        assert set(labels.needs) == {teacher.id, labels.body["training_set"]}
    for network in units["networks"]:
        assert set(network.needs) == {network.body["training_set"], network.body["labels"]}


def test_other_views_are_other_labels_of_the_same_teacher() -> None:
    units = by_task(taught())
    others = by_task(taught(protocol=FKD | {"params": FKD["params"] | {"mixing": "mixup"}}))  # type: ignore[operator]
    slower = by_task(taught(protocol=FKD | {"params": FKD["params"] | {"temperature": 9}}))  # type: ignore[operator]

    assert units["teachers"] == others["teachers"] == slower["teachers"]
    assert units["soft-labels"] != others["soft-labels"]
    assert units["soft-labels"] == slower["soft-labels"]
    assert len({each["networks"][0].id for each in (units, others, slower)}) == 3


def test_lines_of_results_tell_their_teacher() -> None:
    with_teacher = plan(taught(), no_added_datasets).groups
    without = plan(taught(protocol="dsa"), no_added_datasets).groups

    assert [group["teacher"]["name"] for group in with_teacher.values()] == ["convnet"]
    assert all("teacher" not in group for group in without.values())


METHODS = [
    {"name": "sre2l", "params": {"iterations": 2}},
    {"name": "cda", "params": {"iterations": 2}},
    {"name": "rded", "params": {"candidates": 4, "crops": 2}},
]


def test_methods_that_ask_a_teacher_share_it_with_the_labels() -> None:
    units = by_task(taught(methods=METHODS, protocol=FKD))
    wide = [{"name": "convnet", "params": {"width": 8, "depth": 2}}]
    others = by_task(
        taught(methods=METHODS, networks=wide, teacher=units["teachers"][0].body["network"])
    )

    (teacher,) = units["teachers"]
    assert all(unit.body["teacher"] == teacher.id for unit in units["synthesis"])
    assert all(unit.needs == (teacher.id,) for unit in units["synthesis"])
    # They look at no other network, so experiments with different ones share them.
    assert units["synthesis"] == others["synthesis"]
    assert "teacher" not in by_task(taught())["synthesis"][0].body


def test_teacher_without_batch_statistics_is_refused_in_the_plan() -> None:
    with pytest.raises(InvalidSpec) as caught:
        by_task(taught(methods=METHODS, teacher=CONVNET))

    assert caught.value.faults == (
        "methods.0: sre2l compares batch statistics, which the teacher convnet has not; "
        "give it norm: batch",
        "methods.1: cda compares batch statistics, which the teacher convnet has not; "
        "give it norm: batch",
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_sets_that_a_teacher_helped_to_make_go_all_the_way(
    method: Any, a_context: Contexts
) -> None:
    units = by_task(taught(methods=[method]))
    made = made_before(units, a_context)
    made |= outputs_of(SoftLabelsHandler(), a_context("labels", made), *units["soft-labels"])

    outputs = outputs_of(NetworksHandler(), a_context("network", made), *units["networks"])

    result = made[UnitId(units["synthesis"][0].id)].result
    assert (result["images"], result["loss"] > 0) == (10, True)
    assert all(output.result["loss"] > 0 for output in outputs.values())


def test_protocol_without_teacher_asks_for_none() -> None:
    assert set(by_task(taught(protocol="dsa"))) == {"synthesis", "networks"}


def test_teacher_cannot_be_taught_itself() -> None:
    with pytest.raises(InvalidSpec, match="teacher_protocol: fkd wants a teacher itself"):
        by_task(taught(teacher_protocol="fkd"))


def test_teacher_is_stored_with_its_classes_and_resumes_bit_for_bit(a_context: Contexts) -> None:
    (unit,) = by_task(taught())["teachers"]
    straight = outputs_of(TeachersHandler(), a_context("straight"), unit)[UnitId(unit.id)]

    with pytest.raises(ShuttingDown):
        outputs_of(TeachersHandler(), a_context("job", stop_after=2, checkpoint_every=1), unit)
    resumed = outputs_of(TeachersHandler(), a_context("job"), unit)[UnitId(unit.id)]

    assert resumed.files["weights"].read_bytes() == straight.files["weights"].read_bytes()
    assert straight.result["classes"] == 10
    assert straight.result["network"]["params"]["norm"] == "batch"
    assert straight.result["clean_accuracy"] > 0.3


@pytest.mark.parametrize("method", ["random", {"name": "idc", "params": {"iterations": 1}}])
def test_networks_learn_from_replayed_views(method: Any, a_context: Contexts) -> None:
    few = {"outer_loop": 1, "real_batch": 4}
    if isinstance(method, dict):
        method = method | {"params": method["params"] | few}
    units = by_task(taught(methods=[method], images_per_class=[2], network_seeds=[0, 1]))
    made = made_before(units, a_context)
    made |= outputs_of(SoftLabelsHandler(), a_context("labels", made), *units["soft-labels"])
    stored = load_file(made[UnitId(units["soft-labels"][0].id)].files["labels"])

    together = outputs_of(NetworksHandler(), a_context("both", made), *units["networks"])
    alone = outputs_of(NetworksHandler(), a_context("alone", made), units["networks"][1])

    count = 20 if method == "random" else 80  # of canvases the decoded images are labelled
    assert stored["logits"].shape == (3, count, 10)
    assert not stored["mirrored"].any()  # a mirrored digit is none
    for unit_id, output in alone.items():
        assert (
            output.files["weights"].read_bytes() == together[unit_id].files["weights"].read_bytes()
        )
    assert all(output.result["loss"] > 0 for output in together.values())


def test_stopped_labelling_equals_the_straight_run(a_context: Contexts) -> None:
    units = by_task(taught())
    made = made_before(units, a_context)
    (unit,) = units["soft-labels"]
    straight = outputs_of(SoftLabelsHandler(), a_context("straight", made), unit)

    with pytest.raises(ShuttingDown):
        outputs_of(
            SoftLabelsHandler(), a_context("job", made, stop_after=1, checkpoint_every=1), unit
        )
    resumed = outputs_of(SoftLabelsHandler(), a_context("job", made), unit)

    unit_id = UnitId(unit.id)
    labels = resumed[unit_id].files["labels"].read_bytes()
    assert labels == straight[unit_id].files["labels"].read_bytes()


def test_one_label_of_each_image_can_be_trained_towards(a_context: Contexts) -> None:
    units = by_task(taught(protocol={"name": "soft-label", "params": {"epochs": 2}}))
    made = made_before(units, a_context)
    made |= outputs_of(SoftLabelsHandler(), a_context("labels", made), *units["soft-labels"])
    stored = load_file(made[UnitId(units["soft-labels"][0].id)].files["labels"])

    (output,) = outputs_of(
        NetworksHandler(), a_context("network", made), *units["networks"]
    ).values()

    assert stored["logits"].shape == (1, 10, 10)
    assert stored["boxes"].tolist() == [[[0, 0, 8, 8]] * 10]
    assert not stored["mirrored"].any()
    assert output.result["loss"] > 0


def test_whole_set_can_be_taught_too(a_context: Contexts) -> None:
    units = by_task(taught(methods=[], images_per_class=[], whole_set=True))
    made = made_before(units, a_context)
    made |= outputs_of(SoftLabelsHandler(), a_context("labels", made), *units["soft-labels"])

    (output,) = outputs_of(
        NetworksHandler(), a_context("network", made), *units["networks"]
    ).values()

    assert "synthesis" not in units
    assert output.result["steps"] == 3


def test_labels_of_another_set_or_cut_short_end_the_job(a_context: Contexts) -> None:
    units = by_task(taught(images_per_class=[1, 2]))
    first, second = units["soft-labels"]
    made = made_before(units, a_context)
    made |= outputs_of(SoftLabelsHandler(), a_context("labels", made), first)
    made |= outputs_of(SynthesisHandler(), a_context("larger", made), units["synthesis"][1])
    labels = made[UnitId(first.id)]

    of_other = made | {UnitId(second.id): labels}
    with pytest.raises(ShapeError, match="10 images and 10 classes, the set has 20 and 10"):
        outputs_of(NetworksHandler(), a_context("other", of_other), units["networks"][1])

    short = labels.files["labels"]
    short.write_bytes(short.read_bytes()[:-1])
    with pytest.raises(MalformedArtifact, match="holds no soft labels"):
        outputs_of(NetworksHandler(), a_context("short", made), units["networks"][0])
