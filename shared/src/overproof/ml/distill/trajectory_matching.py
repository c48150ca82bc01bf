"""Trajectory matching (MTT) and its variant with a truncated gradient (TESLA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.trajectories import (
    MTT_SETTINGS,
    MTT_WHITENED_SETTINGS,
    TESLA_SETTINGS,
    TrajectoryParams,
    TruncatedTrajectoryParams,
    setting_of,
)
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.students import Students, StudentValue
from overproof.ml.distill.synthetic import SyntheticImages, labels_of
from overproof.ml.distill.trajectory import Lesson
from overproof.ml.memory import Demand


class TrajectoryMatching(DistillationMethod[TrajectoryParams]):
    """Move the images so that students trained on them go where experts went.

    Each step takes an expert and one of its first snapshots, trains a student from there on the
    synthetic images and moves images and the student's learning rate so that it ends nearer to a
    later snapshot. The learning rate becomes part of the set.

    With soft labels (TESLA) students learn what the expert's later snapshot says of the images.
    The set then carries the logits of the last snapshot of the first expert: those of one step
    would depend on where it happened to stop.

    Args:
        params, problem: see `DistillationMethod`; the problem has experts.

    Raises:
        InvalidSpec: there are no experts, they have too few epochs, or no network is named.
        MalformedArtifact: a trajectory is unusable.

    Source: arXiv:2203.11932, algorithm 1; GeorgeCazenavette/mtt-distillation, distill.py;
    arXiv:2211.10586; justincui03/tesla, distill.py. Differs: scale and rotation as in DSA's code
    (grids that do not align corners); a learning rate below 1e-6 is set to it, where the code goes
    on to a negative one.
    """

    def __init__(self, params: TrajectoryParams, problem: Problem) -> None:
        problem = problem.whitened() if params.zca else problem
        super().__init__(params, problem)
        dataset = problem.dataset
        self._has_soft_labels = isinstance(params, TruncatedTrajectoryParams) and params.soft_labels
        table = MTT_WHITENED_SETTINGS if params.zca else MTT_SETTINGS
        if isinstance(params, TruncatedTrajectoryParams):
            table = TESLA_SETTINGS
        setting = setting_of(
            table,
            classes=dataset.classes,
            images_per_class=problem.images_per_class,
            side=max(dataset.facts.size),
        )
        self._start_epochs = params.start_epochs or setting.start_epochs
        self._learning_rate = params.learning_rate or setting.learning_rate
        self._students = Students(
            problem,
            strategy=params.strategy,
            inner_steps=params.inner_steps or setting.inner_steps,
            matched_epochs=params.matched_epochs or setting.matched_epochs,
            batch=params.batch or setting.batch,
            last_start=self._start_epochs - 1,
            exact=params.gradient == "exact",
        )
        self._synthetic = SyntheticImages(
            problem,
            RealImages(dataset, problem.device),
            params.init,
            self._students.normalizer,
        )
        self._labels = labels_of(dataset.classes, problem.images_per_class).to(problem.device)
        rate = params.rate_learning_rate
        self._rate = StudentValue(
            torch.tensor(params.student_rate or setting.student_rate, device=problem.device),
            learning_rate=setting.rate_learning_rate if rate is None else rate,
            momentum=params.momentum,
            least=1e-6,
        )

    @property
    def total_steps(self) -> int:
        """One step for each student."""
        return self.params.iterations

    def step(self, index: int) -> Mapping[str, float]:
        """Train one student, then move the images and its learning rate."""
        stretch = self._students.stretch(index, 0, self._start_epochs)
        images = self._synthetic.values.flatten(0, 1)
        labels = self._labels
        if self._has_soft_labels:
            labels = self._students.logits(stretch.goal, images)
        made = self._students.match(stretch, Lesson(images, labels), self._rate.value)
        self._synthetic.step(
            made.images.view_as(self._synthetic.values),
            learning_rate=self._learning_rate,
            momentum=self.params.momentum,
        )
        self._rate.step(made.rate)
        return self._read(index, made.loss, student_rate=self._rate.value)

    def result(self) -> DistilledSet:
        """The images as they are now, the learning rate and, if asked for, soft labels."""
        logits = None
        if self._has_soft_labels:
            images = self._synthetic.values.flatten(0, 1)
            logits = self._students.logits(self._students.last_snapshot(0), images).cpu()
        return self._synthetic.distilled(logits=logits, learning_rate=self._rate.number)

    def demand(self) -> Demand:
        """That of a student."""
        return self._students.demand()

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self._synthetic.distilled().images

    def state(self) -> dict[str, Tensor]:
        """Images and learning rate with their velocities."""
        return self._synthetic.state() | self._rate.state("rate.")

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)
        self._rate.load_state(state, "rate.")
