"""Parameters of trajectory matching, and the published settings by data set and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from overproof.catalog.fields import Count, Fraction, Positive, Strategy
from overproof.core.registry import Params

AtLeastZero = Annotated[float, Field(ge=0)]
Epoch = Annotated[int, Field(ge=0)]


class ExpertParams(Params):
    """Methods that follow experts: the planner has them trained before.

    Published: 100 experts of 50 epochs by SGD at 0.01 without momentum. `strategy` is the
    augmentation of experts and students alike; `zca` whitens the images of both, and of all
    networks that are trained on the set.
    """

    experts: Annotated[int, Field(ge=1, le=500)] = 100
    expert_epochs: Annotated[int, Field(ge=1, le=1_000)] = 50
    expert_learning_rate: Positive = 0.01
    expert_momentum: Fraction = 0.0
    expert_weight_decay: AtLeastZero = 0.0
    expert_batch: Count = 256
    strategy: Strategy = "auto"
    zca: bool = False

    def _require_epochs(self, start_epochs: int | None, matched_epochs: int | None) -> None:
        """Refuse, before experts are trained for hours, ones that end before the last stretch.

        Raises:
            ValueError: they do; or they are shorter than the published ones, and where stretches
                end is left to tables.
        """
        published = type(self).model_fields["expert_epochs"].default
        if start_epochs is None or matched_epochs is None:
            if self.expert_epochs < published:
                raise ValueError(
                    f"expert_epochs: fewer than {published} need start_epochs and matched_epochs "
                    "beside them"
                )
        elif start_epochs - 1 + matched_epochs > self.expert_epochs:
            raise ValueError(
                f"expert_epochs: stretches end after epoch {start_epochs - 1 + matched_epochs}, "
                f"experts after {self.expert_epochs}; raise expert_epochs or lower start_epochs"
            )


class TrajectoryParams(ExpertParams):
    """None stands for the published setting by classes and images per class.

    `start_epochs`: a student starts at one of the first so many snapshots of an expert;
    `inner_steps` later it is compared with the snapshot `matched_epochs` after. `learning_rate`
    moves the images, `rate_learning_rate` moves the student's own rate, which begins at
    `student_rate`. `batch` are images of one inner step; None without a published one is all.
    """

    iterations: Count = 5_000
    inner_steps: Count | None = None
    matched_epochs: Count | None = None
    start_epochs: Count | None = None
    batch: Count | None = None
    learning_rate: Positive | None = None
    momentum: Fraction = 0.5
    student_rate: Positive | None = None
    rate_learning_rate: AtLeastZero | None = None
    init: Literal["real", "noise"] = "real"
    gradient: Literal["exact", "truncated"] = "exact"

    @model_validator(mode="after")
    def _experts_last_long_enough(self) -> Self:
        self._require_epochs(self.start_epochs, self.matched_epochs)
        return self


class TruncatedTrajectoryParams(TrajectoryParams):
    """TESLA. Its code halves the gradient by mistake; the learning rates here are halved instead.

    `soft_labels`: train students towards what the expert at the end of the stretch says of the
    images, as published for ImageNet-1K.
    """

    iterations: Count = 10_000
    gradient: Literal["exact", "truncated"] = "truncated"
    soft_labels: bool = False


class DifficultyAlignmentParams(ExpertParams):
    """DATM. None stands for the published setting by classes and images per class.

    Students start between `first_start` and, not included, an end that rises from
    `start_epochs_at_first` to `start_epochs` over `rising_iterations`. `label_learning_rate` and
    `label_momentum` move the soft labels. Steps with a loss above `threshold` change nothing.
    """

    expert_epochs: Annotated[int, Field(ge=1, le=1_000)] = 100
    iterations: Count = 10_000
    inner_steps: Count | None = None
    matched_epochs: Count | None = None
    first_start: Epoch | None = None
    start_epochs_at_first: Count | None = None
    start_epochs: Count | None = None
    rising_iterations: Count | None = None
    batch: Count | None = None
    learning_rate: Positive | None = None
    momentum: Fraction = 0.5
    label_learning_rate: AtLeastZero | None = None
    label_momentum: Fraction = 0.9
    student_rate: Positive = 0.01
    rate_learning_rate: AtLeastZero | None = None
    threshold: Positive | None = None
    init: Literal["correct", "real"] = "correct"
    gradient: Literal["exact", "truncated"] = "exact"

    @model_validator(mode="after")
    def _experts_last_long_enough(self) -> Self:
        self._require_epochs(self.start_epochs, self.matched_epochs)
        return self


# ---- published settings ----------------------------------------------------------------------


@dataclass(frozen=True)
class TrajectorySetting:
    """What MTT and TESLA set by data set and size; fields as in `TrajectoryParams`."""

    inner_steps: int
    matched_epochs: int
    start_epochs: int
    batch: int | None
    learning_rate: float
    rate_learning_rate: float
    student_rate: float


@dataclass(frozen=True)
class DifficultySetting:
    """What DATM sets by data set and size; fields as in `DifficultyAlignmentParams`."""

    inner_steps: int
    matched_epochs: int
    learning_rate: float
    first_start: int
    start_epochs_at_first: int
    start_epochs: int
    rising_iterations: int
    batch: int | None
    label_learning_rate: float
    rate_learning_rate: float
    threshold: float = 1.0


Setting = TypeVar("Setting", TrajectorySetting, DifficultySetting)


@dataclass(frozen=True)
class Rows(Generic[Setting]):
    """Settings by images per class, for data sets up to a number of classes and of pixels.

    Attributes:
        side: most pixels of a side, None for any.
    """

    classes: int
    sizes: Mapping[int, Setting]
    side: int | None = None


Table = tuple[Rows[Setting], ...]

_MTT = TrajectorySetting
# DD-RobustBench, table XI: without whitening, for CIFAR-10, CIFAR-100 and Tiny ImageNet.
_MTT_CIFAR10 = {
    1: _MTT(50, 2, 5, None, 1e3, 1e-7, 1e-2),
    5: _MTT(40, 2, 10, None, 1e3, 1e-6, 1e-2),
    10: _MTT(30, 2, 15, None, 1e3, 1e-5, 1e-2),
    30: _MTT(30, 2, 40, None, 1e3, 1e-5, 1e-3),
    50: _MTT(30, 2, 40, None, 1e3, 1e-5, 1e-3),
}
_MTT_CIFAR100 = {
    1: _MTT(40, 3, 15, None, 1e3, 1e-5, 1e-2),
    5: _MTT(30, 2, 30, None, 1e3, 1e-5, 1e-2),
    10: _MTT(20, 2, 40, None, 1e3, 1e-5, 1e-2),
    30: _MTT(40, 2, 40, 125, 1e3, 1e-5, 1e-2),
    50: _MTT(80, 2, 40, 125, 1e3, 1e-5, 1e-2),
}
_MTT_TINY = {
    1: _MTT(10, 2, 10, None, 1e4, 1e-4, 1e-2),
    5: _MTT(15, 2, 25, 200, 1e4, 1e-4, 1e-2),
    10: _MTT(20, 2, 40, 200, 1e4, 1e-4, 1e-2),
    30: _MTT(20, 2, 40, 200, 1e4, 1e-4, 1e-2),
    50: _MTT(20, 2, 40, 300, 1e4, 1e-4, 1e-2),
}
# The reference code, for subsets of ImageNet of 128 × 128 pixels.
_MTT_SUBSETS = {1: _MTT(20, 2, 10, None, 1e3, 1e-6, 1e-2)}
MTT_SETTINGS: Table[TrajectorySetting] = (
    Rows(10, _MTT_CIFAR10, side=64),
    Rows(10, _MTT_SUBSETS),
    Rows(100, _MTT_CIFAR100),
    Rows(200, _MTT_TINY),
)
# The paper and its code; images of CIFAR are whitened but for 50 of CIFAR-10 and 10 of CIFAR-100.
MTT_WHITENED_SETTINGS: Table[TrajectorySetting] = (
    Rows(
        10,
        {
            1: _MTT(50, 2, 2, None, 100, 1e-7, 1e-2),
            10: _MTT(30, 2, 20, None, 100, 1e-5, 1e-3),
            50: _MTT(30, 2, 40, None, 1e3, 1e-5, 1e-3),
        },
        side=64,
    ),
    Rows(10, _MTT_SUBSETS),
    Rows(
        100,
        {
            1: _MTT(20, 3, 20, None, 1e3, 1e-5, 1e-2),
            10: _MTT(20, 2, 20, None, 1e3, 1e-5, 1e-2),
            50: _MTT(80, 2, 40, 125, 1e3, 1e-5, 1e-2),
        },
    ),
    Rows(200, _MTT_TINY),
)
# DD-RobustBench, table XII, with halved learning rates: see `TruncatedTrajectoryParams`.
TESLA_SETTINGS: Table[TrajectorySetting] = (
    Rows(
        10,
        {
            1: _MTT(50, 2, 5, None, 500, 1e-7, 1e-2),
            5: _MTT(40, 2, 10, None, 500, 1e-6, 1e-2),
            10: _MTT(30, 2, 20, None, 500, 1e-5, 1e-2),
            30: _MTT(30, 2, 40, None, 500, 1e-5, 1e-3),
            50: _MTT(30, 3, 40, None, 500, 1e-5, 1e-3),
        },
    ),
    Rows(
        100,
        {
            1: _MTT(40, 3, 15, None, 500, 1e-5, 1e-2),
            5: _MTT(40, 2, 10, None, 500, 1e-6, 1e-2),
            10: _MTT(15, 3, 30, None, 500, 1e-5, 1e-2),
            30: _MTT(40, 2, 20, 125, 500, 1e-5, 1e-2),
            50: _MTT(80, 2, 40, 125, 500, 1e-5, 1e-2),
        },
    ),
    Rows(
        200,
        {
            1: _MTT(10, 2, 10, None, 5e3, 1e-4, 1e-2),
            5: _MTT(15, 2, 25, 200, 5e3, 1e-4, 1e-2),
            10: _MTT(20, 2, 40, 200, 5e3, 1e-4, 1e-2),
            30: _MTT(20, 2, 40, 200, 5e3, 1e-4, 1e-2),
            50: _MTT(20, 2, 40, 300, 5e3, 1e-4, 1e-2),
        },
    ),
    # The reference code, for ImageNet-1K of 64 × 64 pixels, with `soft_labels` and 50 experts.
    Rows(1000, {1: _MTT(10, 3, 10, 100, 5e3, 1e-4, 1e-2)}),
)

_DATM = DifficultySetting
# The configurations of the reference code, for whitened images; 5 and 30 images are ours.
DATM_SETTINGS: Table[DifficultySetting] = (
    Rows(
        10,
        {
            1: _DATM(80, 2, 100, 0, 4, 4, 1, 10, 5, 1e-7, threshold=1.1),
            5: _DATM(80, 2, 100, 0, 10, 20, 1000, None, 2, 1e-5),
            10: _DATM(80, 2, 100, 0, 10, 20, 1000, 100, 2, 1e-5),
            30: _DATM(80, 2, 1000, 0, 20, 40, 2000, None, 2, 1e-5),
            50: _DATM(80, 2, 1000, 0, 20, 40, 2000, 500, 2, 1e-5),
            500: _DATM(40, 2, 50, 40, 60, 60, 1, 1000, 10, 1e-5),
            1000: _DATM(100, 2, 50, 40, 60, 60, 1, 1000, 10, 1e-5),
        },
    ),
    Rows(
        100,
        {
            1: _DATM(40, 3, 1000, 0, 10, 20, 1000, None, 10, 1e-5),
            10: _DATM(80, 2, 1000, 0, 30, 50, 2000, 1000, 10, 1e-5),
            50: _DATM(80, 2, 1000, 20, 70, 70, 1, 1000, 10, 1e-5),
            100: _DATM(80, 2, 50, 30, 70, 70, 1, 1000, 10, 1e-5),
        },
    ),
    Rows(
        200,
        {
            1: _DATM(40, 2, 1e4, 0, 15, 20, 2000, None, 10, 1e-4),
            10: _DATM(40, 2, 100, 10, 50, 50, 1, 500, 10, 1e-4),
            50: _DATM(20, 2, 100, 40, 70, 70, 1, 1000, 10, 1e-4),
        },
    ),
)


def setting_of(table: Table[Setting], *, classes: int, images_per_class: int, side: int) -> Setting:
    """The published setting, or the nearest below.

    Args:
        table: of the method.
        classes: the first rows for as many, or more, are taken; above all, the last.
        images_per_class: of the published sizes the largest that is not larger is taken; below
            all, the smallest.
        side: pixels of the longer side; rows for smaller images are passed over.
    """
    sizes = next(
        (
            rows.sizes
            for rows in table
            if classes <= rows.classes and (rows.side is None or side <= rows.side)
        ),
        table[-1].sizes,
    )
    return sizes[max((size for size in sizes if size <= images_per_class), default=min(sizes))]
