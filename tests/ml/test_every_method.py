"""What every distillation method of the catalog must do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overproof.catalog.distillation import ASKS_TEACHER, DISTILLATION, NETWORK_FREE
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, InvalidSpec, MalformedArtifact, NonFiniteLoss, ShapeError
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem

FOLLOWING = {
    "iterations": 3,
    "inner_steps": 2,
    "matched_epochs": 1,
    "start_epochs": 2,
    "learning_rate": 1.0,
}

ON_CANVASES = {
    "iterations": 2,
    "outer_loop": 2,
    "real_batch": 8,
    "network_images": 16,
    "network_batch": 16,
    "distance": "layerwise-cosine",
    "learning_rate": 0.03,
}

# A new method is a row: parameters for a run of a second, and whether it descends on a loss, at a
# learning rate that can be too high.
ROWS: dict[str, tuple[dict[str, Any], bool]] = {
    "random": ({}, False),
    "whole-set": ({}, False),
    "herding": ({"epochs": 3, "learning_rate": 0.05, "batch_size": 64}, False),
    "k-center": ({"epochs": 3, "learning_rate": 0.05, "batch_size": 64}, False),
    "k-means": ({"epochs": 3, "learning_rate": 0.05, "batch_size": 64}, False),
    "distribution-matching": ({"iterations": 4, "real_batch": 8}, True),
    "gradient-matching": (
        {"iterations": 2, "outer_loop": 2, "inner_loop": 1, "real_batch": 8},
        True,
    ),
    "siamese-augmentation": (
        {"iterations": 2, "outer_loop": 2, "inner_loop": 1, "real_batch": 8},
        True,
    ),
    "efficient-parameterization": (ON_CANVASES, True),
    "representative-matching": (ON_CANVASES | {"clusters": 5, "rounds": 3}, True),
    "bidirectional-representative-matching": (
        ON_CANVASES | {"clusters": 6, "rounds": 3, "nearest": 2, "network_batch": 100},
        True,
    ),
    "improved-distribution-matching": (
        {"iterations": 4, "real_batch": 8, "interval": 2, "training_steps": 1, "networks": 4},
        True,
    ),
    "trajectory-matching": (FOLLOWING, True),
    "tesla": (FOLLOWING, True),
    "difficulty-alignment": (FOLLOWING | {"threshold": 10.0}, True),
    "squeeze-recover-relabel": ({"iterations": 4}, False),
    "curriculum-data-augmentation": ({"iterations": 4}, False),
    "realistic-patches": ({"factor": 2, "candidates": 12, "crops": 2}, False),
    "latent-diffusion": ({"variant": "medoid"}, False),  # the other: test_latent_diffusion.py
}
# Its cross entropy gains weight with the accuracy of the networks.
FALLING = {"improved-distribution-matching": {"entropy_weight": 0.0, "learning_rate": 3.0}}
SELECTING = [name for name in ROWS if "selection" in DISTILLATION.get(name).tags]
ASKING = [name for name in ROWS if ASKS_TEACHER in DISTILLATION.get(name).tags]
# Nothing is drawn, or all that is lies in the prototypes, which are made before.
DRAWN_BEFORE = {"whole-set", "latent-diffusion"}
OPTIMISING = [name for name, (_, optimises) in ROWS.items() if optimises]
FOLLOWERS = [name for name in ROWS if FOLLOWING.items() <= ROWS[name][0].items()]
# Followers measure each step by another expert.
MATCHING = [name for name in OPTIMISING if name not in FOLLOWERS]


def a_method(name: str, problem: Problem, **over: Any) -> DistillationMethod[Any]:
    ref = PluginRef(name=name, params=ROWS[name][0] | over)
    made: DistillationMethod[Any] = DISTILLATION.load(name)(DISTILLATION.resolve(ref), problem)
    return made


def run(method: DistillationMethod[Any], first: int = 0) -> DistilledSet:
    for index in range(first, method.total_steps):
        method.step(index)
    return method.result()


def test_every_method_of_the_catalog_has_a_row() -> None:
    assert sorted(ROWS) == DISTILLATION.names()


@pytest.mark.parametrize("name", ROWS)
def test_result_has_the_shape_type_and_classes_of_a_distilled_set(
    name: str, problem: Problem
) -> None:
    made = run(a_method(name, problem))

    each = 20 if name == "whole-set" else 2
    assert made.images.shape == (10 * each, 1, 8, 8)
    assert made.images.dtype == torch.float32
    assert made.images.isfinite().all()
    assert -1.5 < float(made.images.min()) < float(made.images.max()) < 2.5
    assert made.labels.tolist() == [label for label in range(10) for _ in range(each)]


@pytest.mark.parametrize("name", SELECTING)
def test_selection_takes_different_real_images_of_the_right_class(
    name: str, problem: Problem
) -> None:
    made = run(a_method(name, problem))

    real = problem.dataset.train_images.float() / 255
    for image, label in zip(made.images, made.labels, strict=True):
        matches = (real == image).flatten(1).all(dim=1)
        assert label in problem.dataset.train_labels[matches]
    assert len({image.numpy().tobytes() for image in made.images}) == len(made.images)


@pytest.mark.parametrize("name", ROWS)
def test_same_seed_gives_same_bytes_whatever_was_drawn_before(
    name: str, problem: Problem, tmp_path: Path
) -> None:
    run(a_method(name, problem)).write(tmp_path / "first")
    torch.rand(7)

    run(a_method(name, problem)).write(tmp_path / "second")
    run(a_method(name, replace(problem, seed=4))).write(tmp_path / "other")

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    is_other = (tmp_path / "first").read_bytes() != (tmp_path / "other").read_bytes()
    assert is_other == (name not in DRAWN_BEFORE)


@pytest.mark.parametrize("name", ROWS)
def test_work_leaves_the_global_generator_alone(name: str, problem: Problem) -> None:
    before = torch.get_rng_state()

    run(a_method(name, problem))

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ROWS)
def test_run_resumed_after_every_step_equals_the_straight_run(
    name: str, problem: Problem, tmp_path: Path
) -> None:
    straight = a_method(name, problem)
    resumed = a_method(name, problem)

    for index in range(straight.total_steps):
        state = resumed.state()
        resumed = a_method(name, problem)
        resumed.load_state(state)
        resumed.step(index)
        straight.step(index)

    straight.result().write(tmp_path / "straight")
    resumed.result().write(tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()


@pytest.mark.parametrize("name", MATCHING)
def test_loss_falls(name: str, problem: Problem) -> None:
    few = {"iterations": 10} | ({"outer_loop": 1} if "outer_loop" in ROWS[name][0] else {})
    method = a_method(name, problem, **few | FALLING.get(name, {}), strategy="none", init="noise")

    losses = [method.step(index)["loss"] for index in range(method.total_steps)]

    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert method.loss == losses[-1]


@pytest.mark.parametrize("name", OPTIMISING)
def test_divergence_is_an_error_that_names_the_step(name: str, problem: Problem) -> None:
    method = a_method(name, problem, learning_rate=1e38)

    with pytest.raises(NonFiniteLoss, match=r"in step [1-3]; lower the learning rate"):
        run(method)


@pytest.mark.parametrize("name", ASKING)
def test_method_that_asks_a_teacher_says_so(name: str, problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="teacher: this method asks a teacher; name one"):
        a_method(name, replace(problem, teacher=None))


@pytest.mark.parametrize(
    "name", [name for name in ROWS if NETWORK_FREE not in DISTILLATION.get(name).tags]
)
def test_method_that_needs_a_network_says_so(name: str, problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="name one"):
        a_method(name, replace(problem, network=None))


@pytest.mark.parametrize("name", ROWS)
def test_more_images_than_the_smallest_class_has_are_refused(name: str, problem: Problem) -> None:
    with pytest.raises(InvalidData, match="class 0 has 20 training images"):
        a_method(name, replace(problem, images_per_class=21))


def test_whole_set_is_all_training_images_class_after_class(problem: Problem) -> None:
    made = run(a_method("whole-set", problem))

    dataset = problem.dataset
    for label in range(10):
        real = dataset.train_images[dataset.train_labels == label].float() / 255
        assert torch.equal(made.images[made.labels == label], real)


def test_distilled_set_survives_its_file(problem: Problem, tmp_path: Path) -> None:
    made = run(a_method("random", problem))

    made.write(tmp_path / "set")
    read = DistilledSet.read(tmp_path / "set", problem.dataset.facts)

    assert torch.equal(read.images, made.images)
    assert torch.equal(read.labels, made.labels)
    assert read.canvas_factor == 1
    assert (read.logits, read.learning_rate) == (None, None)


def test_learned_labels_and_rate_survive_their_file(problem: Problem, tmp_path: Path) -> None:
    made = run(a_method("difficulty-alignment", problem))
    assert made.logits is not None

    made.write(tmp_path / "set")
    read = DistilledSet.read(tmp_path / "set", problem.dataset.facts)

    assert read.logits is not None
    assert torch.equal(read.logits, made.logits)
    assert read.learning_rate == made.learning_rate
    assert torch.equal(read.targets, made.logits.softmax(dim=1))


def test_canvases_survive_their_file_and_are_decoded_for_training(
    problem: Problem, tmp_path: Path
) -> None:
    made = run(a_method("efficient-parameterization", problem))

    made.write(tmp_path / "set")
    read = DistilledSet.read(tmp_path / "set", problem.dataset.facts)
    decoded = read.decoded()

    assert read.canvas_factor == 2
    assert torch.equal(read.images, made.images)
    assert decoded.images.shape == (80, 1, 8, 8)
    assert decoded.labels.tolist() == [label for label in range(10) for _ in range(8)]
    assert decoded.canvas_factor == 1
    assert decoded.decoded() is decoded


def test_file_that_is_no_distilled_set_is_refused(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"not safetensors")
    DistilledSet(torch.full((1, 1, 8, 8), torch.nan), torch.zeros(1, dtype=torch.int64)).write(
        tmp_path / "nan"
    )
    DistilledSet(torch.zeros(1, 1, 8, 8), torch.tensor([10])).write(tmp_path / "label")
    DistilledSet(torch.zeros(1, 1, 8, 8), torch.tensor([1]), canvas_factor=9).write(
        tmp_path / "canvas"
    )

    with pytest.raises(MalformedArtifact, match="not a distilled set"):
        DistilledSet.read(tmp_path / "set", problem.dataset.facts)
    with pytest.raises(InvalidData, match="not finite"):
        DistilledSet.read(tmp_path / "nan", problem.dataset.facts)
    with pytest.raises(InvalidData, match="labels"):
        DistilledSet.read(tmp_path / "label", problem.dataset.facts)
    with pytest.raises(InvalidData, match="8 × 8 pixels has no factor 9"):
        DistilledSet.read(tmp_path / "canvas", problem.dataset.facts)


def test_soft_labels_and_rates_that_fit_no_set_are_refused(
    problem: Problem, tmp_path: Path
) -> None:
    whole = DistilledSet(torch.zeros(1, 1, 8, 8), torch.tensor([3]))
    replace(whole, logits=torch.zeros(1, 9)).write(tmp_path / "classes")
    replace(whole, logits=torch.full((1, 10), torch.inf)).write(tmp_path / "infinite")
    replace(whole, learning_rate=-0.1).write(tmp_path / "rate")

    with pytest.raises(ShapeError, match="1 images and 10 classes"):
        DistilledSet.read(tmp_path / "classes", problem.dataset.facts)
    with pytest.raises(InvalidData, match="not finite"):
        DistilledSet.read(tmp_path / "infinite", problem.dataset.facts)
    with pytest.raises(InvalidData, match=r"must be positive, not -0\.1"):
        DistilledSet.read(tmp_path / "rate", problem.dataset.facts)
