"""Difficulty-aligned trajectory matching (DATM): the right stretch of experts, learned labels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.trajectories import (
    DATM_SETTINGS,
    DifficultyAlignmentParams,
    setting_of,
)
from overproof.errors import InvalidSpec
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.students import Students, StudentValue
from overproof.ml.distill.synthetic import SyntheticImages
from overproof.ml.distill.trajectory import Lesson
from overproof.ml.memory import Demand
from overproof.ml.seeding import generator


class DifficultyAlignment(DistillationMethod[DifficultyAlignmentParams]):
    """Follow early parts of experts for few images, late ones for many; learn the labels too.

    Early snapshots know the easy patterns, late ones the hard ones, which only larger sets can
    hold. Labels begin as the logits of experts on real images and are moved as logits; students
    learn their softmax. A step whose loss is above the threshold changes nothing: its expert took
    a turn that no student on these images can follow.

    Args:
        params, problem: see `DistillationMethod`; the problem has experts.

    Raises:
        InvalidSpec: there are no experts, they have too few epochs, no stretch is left, or no
            network is named.
        MalformedArtifact: a trajectory is unusable.

    Source: arXiv:2310.05773, section 4; NUS-HPC-AI-Lab/DATM, distill/DATM.py. Differs: experts
    are trained by plain SGD instead of FTD's flat trajectories;
    where the first expert is right on fewer images of a class than are asked for, others fill up;
    images that no expert has right take the mean of all experts, where the code divides by zero;
    otherwise as `TrajectoryMatching`.
    """

    def __init__(self, params: DifficultyAlignmentParams, problem: Problem) -> None:
        problem = problem.whitened() if params.zca else problem
        super().__init__(params, problem)
        setting = setting_of(
            DATM_SETTINGS,
            classes=problem.dataset.classes,
            images_per_class=problem.images_per_class,
            side=max(problem.dataset.facts.size),
        )
        self._first = setting.first_start if params.first_start is None else params.first_start
        self._end = params.start_epochs or setting.start_epochs
        self._first_end = min(
            params.start_epochs_at_first or setting.start_epochs_at_first, self._end
        )
        if self._first >= self._first_end:
            raise InvalidSpec(
                [
                    f"first_start: {self._first} leaves no epoch before {self._first_end}; lower "
                    "it or raise start_epochs_at_first and start_epochs"
                ],
                "set",
            )
        self._rising = params.rising_iterations or setting.rising_iterations
        self._threshold = params.threshold or setting.threshold
        self._learning_rate = params.learning_rate or setting.learning_rate
        self._students = Students(
            problem,
            strategy=params.strategy,
            inner_steps=params.inner_steps or setting.inner_steps,
            matched_epochs=params.matched_epochs or setting.matched_epochs,
            batch=params.batch or setting.batch,
            last_start=self._end - 1,
            exact=params.gradient == "exact",
        )
        real = RealImages(problem.dataset, problem.device)
        numbers = self._first_images(real)
        self._synthetic = SyntheticImages(problem, real, numbers, self._students.normalizer)
        label_rate = params.label_learning_rate
        self._labels = StudentValue(
            self._first_labels(self._synthetic.values),
            learning_rate=setting.label_learning_rate if label_rate is None else label_rate,
            momentum=params.label_momentum,
        )
        rate = params.rate_learning_rate
        self._rate = StudentValue(
            torch.tensor(params.student_rate, device=problem.device),
            learning_rate=setting.rate_learning_rate if rate is None else rate,
            momentum=params.momentum,
            least=1e-6,
        )

    @property
    def total_steps(self) -> int:
        """One step for each student."""
        return self.params.iterations

    def end_start(self, index: int) -> int:
        """The first epoch at which no stretch begins in step `index`; it rises, then stays."""
        rise = (self._end - self._first_end) * index // self._rising
        return min(self._end, self._first_end + rise)

    def step(self, index: int) -> Mapping[str, float]:
        """Train one student; unless it is lost, move the images, their labels and its rate."""
        stretch = self._students.stretch(index, self._first, self.end_start(index))
        lesson = Lesson(self._synthetic.values.flatten(0, 1), self._labels.value, True)
        made = self._students.match(stretch, lesson, self._rate.value)
        # A loss that is not a number is not above the threshold, and ends the work below.
        if not bool(made.loss > self._threshold) and made.labels is not None:
            self._synthetic.step(
                made.images.view_as(self._synthetic.values),
                learning_rate=self._learning_rate,
                momentum=self.params.momentum,
            )
            self._labels.step(made.labels)
            self._rate.step(made.rate)
        return self._read(index, made.loss, student_rate=self._rate.value)

    def result(self) -> DistilledSet:
        """Images, logits and learning rate as they are now."""
        return self._synthetic.distilled(
            logits=self._labels.value.cpu().clone(), learning_rate=self._rate.number
        )

    def demand(self) -> Demand:
        """That of a student."""
        return self._students.demand()

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self._synthetic.distilled().images

    def state(self) -> dict[str, Tensor]:
        """Images, labels and learning rate with their velocities."""
        own = self._labels.state("labels.") | self._rate.state("rate.")
        return self._synthetic.state() | own

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)
        self._labels.load_state(state, "labels.")
        self._rate.load_state(state, "rate.")

    def _first_images(self, real: RealImages) -> Tensor:
        """(K, n) numbers of real images, which the first expert has right if that is asked for."""
        problem = self.problem
        stream = generator(problem.seed, "initial-images")
        count = problem.images_per_class
        if self.params.init == "real":
            return real.draw(count, stream)
        real.require(count)
        snapshot = self._students.last_snapshot(0)
        chosen = []
        for label in range(problem.dataset.classes):
            numbers = real.of_class(label)
            predictions = torch.cat(
                [
                    self._students.logits(
                        snapshot, self._students.normalizer.normalize(real.pixels(part))
                    ).argmax(dim=1)
                    for part in torch.split(numbers, problem.rows_at_once)
                ]
            )
            keys = torch.rand(len(numbers), generator=stream) + (predictions.cpu() != label)
            chosen.append(numbers[keys.topk(count, largest=False).indices])
        return torch.stack(chosen)

    def _first_labels(self, images: Tensor) -> Tensor:
        """(N, K) mean logits of the experts that have an image right, of all if none has."""
        classes, count = images.shape[:2]
        experts = 1 if self.params.init == "real" else self._students.experts
        labels = torch.arange(classes, device=images.device).repeat_interleave(count)
        all_of_them = torch.zeros(len(labels), classes, device=images.device)
        right_ones = torch.zeros_like(all_of_them)
        votes = torch.zeros(len(labels), 1, device=images.device)
        for expert in range(experts):
            logits = self._students.logits(
                self._students.last_snapshot(expert), images.flatten(0, 1)
            )
            is_right = (logits.argmax(dim=1) == labels).unsqueeze(1)
            all_of_them += logits / experts
            right_ones += logits * is_right
            votes += is_right
        return torch.where(votes > 0, right_ones / votes.clamp(min=1), all_of_them)
