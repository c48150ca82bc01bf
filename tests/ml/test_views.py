"""Views against torchvision, which crops one image at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as oracle

from overproof.errors import ShapeError
from overproof.ml.augment import views
from overproof.ml.augment.views import Views
from overproof.ml.seeding import generator

SIZE = (12, 16)  # not square


@pytest.fixture
def images() -> Tensor:
    return torch.rand(40, 3, *SIZE, generator=generator(0, "images"))


def plain(boxes: Tensor, *, mirrored: bool = False, tiles: Tensor | None = None) -> Views:
    count = len(boxes)
    order = torch.zeros(count, 2, 1, dtype=torch.int64) if tiles is None else tiles
    return Views(boxes=boxes, mirrored=torch.full((count,), mirrored), tiles=order)


@pytest.mark.parametrize("size", [SIZE, (6, 8), (24, 20)])
def test_crops_equal_those_of_torchvision(images: Tensor, size: tuple[int, int]) -> None:
    boxes = views.crop_boxes(len(images), SIZE, 0.08, generator(1))

    made = views.resized(images, boxes, size)

    for image, (top, left, height, width), crop in zip(images, boxes.tolist(), made, strict=True):
        expected = oracle.resized_crop(image, top, left, height, width, list(size), antialias=True)
        torch.testing.assert_close(crop, expected, atol=1e-5, rtol=0)


def test_boxes_lie_inside_and_have_the_share_and_aspect_asked_for() -> None:
    boxes = views.crop_boxes(2000, (32, 32), 0.3, generator(2))
    top, left, height, width = boxes.double().unbind(1)

    assert (float(top.min()), float(left.min())) == (0, 0)
    assert (float((top + height).max()), float((left + width).max())) == (32, 32)
    area = height * width / 32**2
    assert 0.27 < float(area.min()) < 0.33
    assert float(area.max()) > 0.95
    # Of 32 pixels one is half a pixel of rounding in each direction.
    assert 0.7 < float((width / height).min()) < float((width / height).max()) < 1.43
    assert float(area.mean()) == pytest.approx(0.62, abs=0.03)


def test_box_that_never_fits_is_the_largest_in_the_middle() -> None:
    boxes = views.crop_boxes(5, (10, 40), 1.0, generator(3))

    # 10 × 40 pixels at an aspect of at most 4/3: 10 × 13 of them.
    assert boxes.tolist() == [[0, 13, 10, 13]] * 5


def test_square_crops_are_square() -> None:
    boxes = views.crop_boxes(100, (32, 32), 0.08, generator(4), aspects=(1.0, 1.0))

    assert torch.equal(boxes[:, 2], boxes[:, 3])
    assert len(set(boxes[:, 2].tolist())) > 10


def test_shifts_equal_padding_and_cropping(images: Tensor) -> None:
    boxes = views.shift_boxes(len(images), SIZE, 3, generator(5))

    made = views.apply(images, plain(boxes))

    padded = torch.nn.functional.pad(images, (3, 3, 3, 3))
    for image, (top, left, *_), moved in zip(padded, boxes.tolist(), made, strict=True):
        assert torch.equal(moved, image[:, 3 + top : 15 + top, 3 + left : 19 + left])
    assert set(boxes[:, 0].tolist()) == set(range(-3, 4))


def test_whole_box_changes_no_bit(images: Tensor) -> None:
    boxes = views.whole_boxes(len(images), SIZE)

    assert torch.equal(views.apply(images, plain(boxes)), images)
    assert torch.equal(views.apply(images, plain(boxes, mirrored=True)), images.flip(3))


def test_tiles_are_put_in_order_columns_and_rows_apart() -> None:
    image = torch.arange(36.0).view(1, 1, 6, 6)
    order = torch.tensor([[[2, 0, 1], [1, 2, 0]]])

    made = views.apply(image, plain(views.whole_boxes(1, (6, 6)), tiles=order))

    columns = torch.cat([image[..., 4:], image[..., :2], image[..., 2:4]], dim=3)
    expected = torch.cat([columns[:, :, 2:4], columns[:, :, 4:], columns[:, :, :2]], dim=2)
    assert torch.equal(made, expected)


def test_last_tile_takes_what_the_factor_leaves_over() -> None:
    image = torch.arange(25.0).view(1, 1, 5, 5)
    order = torch.tensor([[[1, 0], [0, 1]]])

    made = views.apply(image, plain(views.whole_boxes(1, (5, 5)), tiles=order))

    assert torch.equal(made, torch.cat([image[..., 2:], image[..., :2]], dim=3))


def test_orders_of_tiles_are_permutations() -> None:
    orders = views.tile_orders(200, 3, generator(6))

    assert torch.equal(orders.sort(dim=2).values, torch.arange(3).expand(200, 2, 3))
    assert len({tuple(order) for order in orders[:, 0].tolist()}) == 6


def test_view_of_an_image_does_not_depend_on_the_others(images: Tensor) -> None:
    seen = plain(views.crop_boxes(len(images), SIZE, 0.08, generator(7)))
    rows = torch.tensor([31, 2, 17])

    some = views.apply(images[rows], seen.of(rows))

    torch.testing.assert_close(some, views.apply(images, seen)[rows], atol=1e-6, rtol=0)


def test_gradients_flow_back_through_crops(images: Tensor) -> None:
    x = images[:2, :1, :6, :5].double().requires_grad_(True)
    boxes = torch.tensor([[2, 1, 4, 3], [0, 0, 6, 5]])

    assert torch.autograd.gradcheck(lambda x: views.resized(x, boxes, (4, 4)), (x,))


def test_boxes_of_other_images_are_refused(images: Tensor) -> None:
    with pytest.raises(ShapeError, match="39 boxes and 40 images"):
        views.resized(images, views.whole_boxes(39, SIZE), SIZE)
