from __future__ import annotations

import pytest
import torch

from overproof.errors import ShapeError
from overproof.ml.shapes import (
    ImageFacts,
    check_images,
    check_labels,
    check_same_shape,
    check_unit_range,
)


def test_good_images_pass_every_check(colour_facts: ImageFacts) -> None:
    x = torch.full((2, 3, 8, 8), 0.5)

    check_images(x, facts=colour_facts)
    check_unit_range(x)
    check_labels(torch.tensor([0, 1]), count=2, classes=2)
    check_same_shape(x, x + 1, what="images")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 8, 8), r"must be \(B, C, H, W\)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "divide by 255"),
        (torch.zeros(1, 1, 8, 8), r"not \(1, 1, 8, 8\)"),
        (torch.zeros(1, 3, 8, 9), r"not \(1, 3, 8, 9\)"),
    ],
)
def test_images_of_another_form_are_refused(
    x: torch.Tensor, message: str, colour_facts: ImageFacts
) -> None:
    with pytest.raises(ShapeError, match=message):
        check_images(x, facts=colour_facts)


@pytest.mark.parametrize("value", [-0.001, 1.001, float("nan"), float("inf")])
def test_pixels_outside_the_unit_range_are_refused(value: float) -> None:
    x = torch.zeros(1, 1, 2, 2)
    x[0, 0, 1, 1] = value

    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        check_unit_range(x)


@pytest.mark.parametrize(
    ("y", "error"),
    [
        (torch.tensor([0]), ShapeError),
        (torch.tensor([[0], [1]]), ShapeError),
        (torch.tensor([0.0, 1.0]), ShapeError),
        (torch.tensor([0, 2]), ValueError),
        (torch.tensor([-1, 1]), ValueError),
    ],
)
def test_labels_that_are_not_class_indices_are_refused(
    y: torch.Tensor, error: type[Exception]
) -> None:
    with pytest.raises(error, match="labels must"):
        check_labels(y, count=2, classes=2)


def test_tensors_of_different_shapes_are_refused_by_name() -> None:
    with pytest.raises(ShapeError, match=r"masks differ in shape: \(2,\) and \(3,\)"):
        check_same_shape(torch.zeros(2), torch.zeros(3), what="masks")


def test_facts_need_one_mean_and_deviation_a_channel() -> None:
    with pytest.raises(ShapeError, match="3 channels need as many"):
        ImageFacts(channels=3, size=(8, 8), classes=2, mean=(0.5,), std=(0.5,))
    with pytest.raises(ValueError, match="must be positive"):
        ImageFacts(channels=1, size=(8, 8), classes=2, mean=(0.5,), std=(0.0,))
