"""MTT, TESLA and DATM: what they draw, what they leave alone, and that they learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.trajectories import (
    DATM_SETTINGS,
    MTT_SETTINGS,
    MTT_WHITENED_SETTINGS,
    TESLA_SETTINGS,
    DifficultyAlignmentParams,
    TrajectoryParams,
    TruncatedTrajectoryParams,
    setting_of,
)
from overproof.core.spec import PluginRef
from overproof.errors import InvalidSpec
from overproof.ml.distill.base import Problem
from overproof.ml.distill.difficulty_alignment import DifficultyAlignment
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.students import Stretch, Students, StudentValue
from overproof.ml.distill.trajectory_matching import TrajectoryMatching
from overproof.ml.train.experts import Experts

CPU = torch.device("cpu")
SHORT: dict[str, Any] = {"inner_steps": 4, "matched_epochs": 1, "start_epochs": 2}


def some_students(problem: Problem, **over: Any) -> Students:
    values: dict[str, Any] = {
        "strategy": "none",
        "inner_steps": 7,
        "matched_epochs": 2,
        "batch": 8,
        "last_start": 1,
        "exact": True,
    }
    return Students(problem, **values | over)


def datm(problem: Problem, **over: Any) -> DifficultyAlignment:
    return DifficultyAlignment(
        DifficultyAlignmentParams.model_validate(SHORT | {"threshold": 10.0} | over), problem
    )


def network_of(problem: Problem, snapshot: Tensor) -> Any:
    """The network of a snapshot, put together by torch."""
    model = problem.build()
    torch.nn.utils.vector_to_parameters(snapshot, model.network.parameters())
    return model


# ---- what is drawn ---------------------------------------------------------------------------


def test_stretch_joins_two_snapshots_of_one_expert(problem: Problem) -> None:
    students = some_students(problem)
    experts = Experts(problem.experts, parameters=len(students.last_snapshot(0)), device=CPU)

    seen = set()
    for index in range(20):
        stretch = students.stretch(index, 0, 2)
        (expert,) = (
            each
            for each in range(2)
            if torch.equal(stretch.start, experts.snapshot(each, stretch.start_epoch))
        )
        assert torch.equal(stretch.goal, experts.snapshot(expert, stretch.start_epoch + 2))
        seen.add((expert, stretch.start_epoch))

    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_start_lies_from_the_first_to_before_the_end(problem: Problem) -> None:
    students = some_students(problem, matched_epochs=1, last_start=2)

    starts = {students.stretch(index, 1, 3).start_epoch for index in range(20)}

    assert starts == {1, 2}


def test_batches_use_every_image_before_one_comes_again(problem: Problem) -> None:
    # 20 images in batches of 8: 4, 8, 8, then a new permutation.
    steps = some_students(problem).stretch(0, 0, 2).steps

    assert [len(step.rows) for step in steps] == [4, 8, 8, 4, 8, 8, 4]
    for lap in (steps[:3], steps[3:6]):
        assert sorted(torch.cat([step.rows for step in lap]).tolist()) == list(range(20))


def test_experts_that_end_too_early_are_refused(problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="stretches end after epoch 4, experts after 3"):
        some_students(problem, last_start=2)


def test_logits_are_those_of_the_network_of_a_snapshot(problem: Problem) -> None:
    students = some_students(problem)
    images = problem.dataset.test_images.float() / 255
    model = network_of(problem, students.last_snapshot(1))

    ours = students.logits(students.last_snapshot(1), students.normalizer.normalize(images))

    assert torch.allclose(ours, model(images), atol=1e-5)
    accuracy = (ours.argmax(dim=1) == problem.dataset.test_labels).float().mean()
    assert accuracy > 0.15  # above chance: an expert has learned something


def test_value_moves_as_sgd_moves_it_and_stays_above_its_bound() -> None:
    ours = StudentValue(torch.tensor([1.0, 0.2]), learning_rate=0.1, momentum=0.5, least=0.05)
    theirs = torch.tensor([1.0, 0.2], requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.5)

    for gradient in (torch.tensor([1.0, 0.1]), torch.tensor([-2.0, 0.3])):
        ours.step(gradient)
        theirs.grad = gradient.clone()
        optimizer.step()
    assert torch.allclose(ours.value, theirs)
    ours.step(torch.tensor([0.0, 100.0]))
    assert ours.value[1] == 0.05


# ---- methods ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtt", "tesla", "datm"])
def test_students_come_nearer_to_their_experts(name: str, problem: Problem) -> None:
    params = SHORT | {
        "start_epochs": 1,
        "strategy": "none",
        "iterations": 20,
        "learning_rate": 300.0,
        "student_rate": 0.1,
        "rate_learning_rate": 1e-4,
    }
    one_expert = replace(problem, experts=problem.experts[:1])
    resolved = DISTILLATION.resolve(PluginRef(name=name, params=params))
    method = DISTILLATION.load(name)(resolved, one_expert)

    losses = [method.step(index)["loss"] for index in range(20)]

    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert method.result().learning_rate != 0.1


def test_soft_labels_are_the_logits_of_the_first_expert_at_its_end(problem: Problem) -> None:
    params = TruncatedTrajectoryParams.model_validate(
        SHORT | {"iterations": 2, "soft_labels": True}
    )
    method = TrajectoryMatching(params, problem)
    for index in range(2):
        method.step(index)

    made = method.result()

    assert made.logits is not None
    snapshot = some_students(problem).last_snapshot(0)
    expected = network_of(problem, snapshot)(made.images)
    assert torch.allclose(made.logits, expected, atol=1e-4)


def test_soft_labels_change_what_students_learn(problem: Problem) -> None:
    losses = set()
    for soft_labels in (False, True):
        params = TruncatedTrajectoryParams.model_validate(SHORT | {"soft_labels": soft_labels})
        losses.add(TrajectoryMatching(params, problem).step(0)["loss"])

    assert len(losses) == 2


# ---- DATM ------------------------------------------------------------------------------------


def test_range_of_starts_rises_by_whole_epochs_and_stays(problem: Problem) -> None:
    method = datm(problem, start_epochs_at_first=1, start_epochs=2, rising_iterations=10)

    assert [method.end_start(index) for index in (0, 9, 10, 99)] == [1, 1, 2, 2]


def test_range_without_an_epoch_is_refused(problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="first_start: 2 leaves no epoch before 2"):
        datm(problem, first_start=2)


def test_loss_above_the_threshold_changes_nothing(problem: Problem) -> None:
    method = datm(problem, threshold=1e-6)
    before = method.state()

    loss = method.step(0)["loss"]

    assert loss > 1e-6
    after = method.state()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_images_labels_and_rate_move_below_the_threshold(problem: Problem) -> None:
    method = datm(problem)
    before = method.state()

    method.step(0)

    after = method.state()
    assert not any(torch.equal(after[name], before[name]) for name in before)


def test_labels_are_exported_as_logits(problem: Problem) -> None:
    made = datm(problem).result()

    assert made.logits is not None
    assert (made.logits.sum(dim=1) - 1).abs().max() > 0.1
    assert torch.allclose(made.targets.sum(dim=1), torch.ones(20))


def test_first_images_are_right_and_their_labels_the_mean_of_the_experts_that_agree(
    problem: Problem,
) -> None:
    method = datm(problem)
    students = some_students(problem)
    made = method.result()
    models = [network_of(problem, students.last_snapshot(expert)) for expert in range(2)]
    logits = torch.stack([model(made.images).detach() for model in models])
    real = RealImages(problem.dataset, problem.device)

    assert made.logits is not None
    for i, label in enumerate(made.labels.tolist()):
        is_right = logits[:, i].argmax(dim=1) == label
        of_class = models[0](real.pixels(real.of_class(label))).argmax(dim=1)
        if int((of_class == label).sum()) >= 2:
            assert is_right[0]
        chosen = logits[is_right, i] if bool(is_right.any()) else logits[:, i]
        assert torch.allclose(made.logits[i], chosen.mean(dim=0), atol=1e-4)


# ---- settings --------------------------------------------------------------------------------


def test_settings_are_the_published_ones_or_the_nearest_below() -> None:
    def mtt(classes: int, images_per_class: int, table: Any = MTT_SETTINGS, side: int = 32) -> Any:
        return setting_of(table, classes=classes, images_per_class=images_per_class, side=side)

    assert (mtt(10, 10).inner_steps, mtt(10, 10).start_epochs) == (30, 15)
    assert mtt(10, 20) == mtt(10, 10)
    assert mtt(10, 1000) == mtt(10, 50)
    assert (mtt(100, 50).inner_steps, mtt(100, 50).batch) == (80, 125)
    assert mtt(37, 1) == mtt(100, 1)
    assert mtt(1000, 1) == mtt(200, 1)
    assert mtt(10, 1, DATM_SETTINGS).threshold == 1.1
    # Subsets of ImageNet have ten classes too, and larger images.
    assert (mtt(10, 10, side=128).inner_steps, mtt(10, 10, side=128).start_epochs) == (20, 10)
    assert (mtt(10, 1).learning_rate, mtt(10, 1, MTT_WHITENED_SETTINGS).learning_rate) == (1e3, 100)
    assert mtt(1000, 1, TESLA_SETTINGS, side=64).matched_epochs == 3


@pytest.mark.parametrize(
    "table", [MTT_SETTINGS, MTT_WHITENED_SETTINGS, TESLA_SETTINGS, DATM_SETTINGS]
)
def test_settings_fit_the_experts_of_their_method(table: Any) -> None:
    params = DifficultyAlignmentParams() if table is DATM_SETTINGS else TrajectoryParams()

    for rows in table:
        for setting in rows.sizes.values():
            assert setting.start_epochs - 1 + setting.matched_epochs <= params.expert_epochs


def test_stretch_is_what_its_step_names(problem: Problem) -> None:
    first, again, other = (some_students(problem).stretch(index, 0, 2) for index in (3, 3, 4))

    def rows(stretch: Stretch) -> list[list[int]]:
        return [step.rows.tolist() for step in stretch.steps]

    assert rows(first) == rows(again) != rows(other)


def test_set_without_experts_is_refused(problem: Problem) -> None:
    with pytest.raises(InvalidSpec, match="follows experts"):
        TrajectoryMatching(TrajectoryParams.model_validate(SHORT), replace(problem, experts=()))
