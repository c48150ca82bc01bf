"""RDED: patches are crops of real images of the class, ordered by what the teacher says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as oracle

from overproof.catalog.distillation import DISTILLATION
from overproof.core.spec import PluginRef
from overproof.errors import InvalidData, InvalidSpec
from overproof.ml.distill.base import Problem
from overproof.ml.distill.patches import RealisticPatches, stitched
from overproof.ml.models.base import Normalized


def run(problem: Problem, **over: Any) -> RealisticPatches:
    ref = PluginRef(name="rded", params={"candidates": 12, "crops": 3} | over)
    method: RealisticPatches = DISTILLATION.load("rded")(DISTILLATION.resolve(ref), problem)
    for index in range(method.total_steps):
        method.step(index)
    return method


def tiles(image: Tensor, factor: int) -> list[Tensor]:
    side = 8 // factor
    return [
        image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
        for row in range(factor)
        for column in range(factor)
    ]


def entropy(teacher: Normalized, patch: Tensor, label: int) -> float:
    """Of a patch in the middle of zeros in normalised space."""
    side = (8 - patch.shape[1]) // 2
    x = torch.nn.functional.pad(teacher.normalize(patch.unsqueeze(0)), (side,) * 4)
    return -float(teacher.network(x).log_softmax(dim=1)[0, label])


@pytest.mark.parametrize("factor", [1, 2])
def test_realism_is_what_the_teacher_says_of_each_patch_and_falls(
    factor: int, taught: Problem
) -> None:
    method = run(taught, factor=factor)

    made = method.result()
    teacher = taught.asked()
    for label in range(10):
        images = made.images[2 * label : 2 * label + 2]
        by_tile = [[tiles(image, factor)[k] for image in images] for k in range(factor**2)]
        patches = [patch for tile in by_tile for patch in tile]
        said = torch.tensor([-entropy(teacher, patch, label) for patch in patches])
        torch.testing.assert_close(method.realism[label], said, atol=1e-4, rtol=1e-4)
        assert torch.equal(said.sort(descending=True).values, said)


@pytest.mark.parametrize("factor", [1, 2])
def test_every_tile_is_a_crop_of_a_real_image_of_its_class(factor: int, taught: Problem) -> None:
    made = run(taught, factor=factor, smallest_crop=0.5).result()

    side = 8 // factor
    dataset = taught.dataset
    for label in (0, 7):
        real = dataset.train_images[dataset.train_labels == label].float() / 255
        crops = torch.cat(
            [
                oracle.resized_crop(real, top, left, size, size, [side, side], antialias=True)
                for size in range(5, 9)
                for top in range(9 - size)
                for left in range(9 - size)
            ]
        )
        for image in made.images[2 * label : 2 * label + 2]:
            for tile in tiles(image, factor):
                assert float((crops - tile).abs().amax(dim=(1, 2, 3)).min()) < 1e-5
    assert made.labels.tolist() == [label for label in range(10) for _ in range(2)]


def test_patches_of_a_class_come_from_different_images_and_are_the_best(taught: Problem) -> None:
    some, all_of_them = run(taught), run(taught, candidates=20, crops=8)

    assert float(all_of_them.realism.mean()) > float(some.realism.mean())


def test_tiles_are_filled_in_turn_and_the_first_ones_are_larger() -> None:
    patches = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 2, 2)

    made = stitched(patches, 2, (5, 4))

    assert made.shape == (2, 1, 5, 4)
    # Tile k of image i is patch 2 k + i; five rows are three and two.
    assert made[0, 0, :, 0].tolist() == [0.0, 0.0, 0.0, 4.0, 4.0]
    assert made[1, 0, 0].tolist() == [1.0, 1.0, 3.0, 3.0]
    assert made[1, 0, 4].tolist() == [5.0, 5.0, 7.0, 7.0]


def test_pixels_are_pixels(taught: Problem) -> None:
    images = run(taught, factor=2).result().images

    assert float(images.min()) >= 0
    assert float(images.max()) <= 1


def test_more_patches_than_images_are_refused(taught: Problem) -> None:
    with pytest.raises(InvalidSpec, match="12 images give as many patches, 16 are needed"):
        run(replace(taught, images_per_class=4), factor=2)
    with pytest.raises(InvalidData, match="class 0 has 20 training images, 24 different"):
        run(replace(taught, images_per_class=6), factor=2, candidates=300)
    with pytest.raises(InvalidSpec, match="8 × 8 pixels have no 9 patches a side"):
        run(taught, factor=9)
    with pytest.raises(InvalidSpec, match="asks a teacher; name one"):
        run(replace(taught, teacher=None))
