"""Realistic patches (RDED): crops of real images that a teacher is surest of, put together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from overproof.catalog.taught import PatchParams, patch_factor
from overproof.errors import InvalidSpec
from overproof.ml.augment.views import crop_boxes, resized
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.seeding import generator


class RealisticPatches(DistillationMethod[PatchParams]):
    """Score crops of real images by a teacher, and fill images with the best ones of their class.

    Of each of some real images the crop with the lowest cross entropy is kept; of these the lowest
    ones become patches, shown to the teacher alone in the middle of an image of zeros. A step is a
    class.

    Args:
        params: see `PatchParams`.
        problem: see `DistillationMethod`; with a teacher, without a network.

    Attributes:
        realism: (K, n · f²) float32, minus the cross entropy of the patches taken, from the best
            on; zeros for classes still to come.

    Raises:
        InvalidSpec: there is no teacher, or fewer candidates than patches.
        InvalidData: a class has fewer images than patches are asked for.

    Source: arXiv:2312.03526, algorithm 1; LINs-lab/RDED, synthesize. Differs: seeded, where the
    code is not; crops have the aspect of the image, which is that of a square for square ones;
    pixels are stored as they are, where the code truncates them to bytes, which wrap around below
    zero, and compresses them.
    """

    def __init__(self, params: PatchParams, problem: Problem) -> None:
        super().__init__(params, problem)
        self._teacher = problem.asked()
        dataset, n = problem.dataset, problem.images_per_class
        C, (H, W) = dataset.facts.channels, dataset.facts.size
        self._factor = params.factor or patch_factor(max(H, W))
        if self._factor > min(H, W):
            raise InvalidSpec(
                [f"factor: images of {H} × {W} pixels have no {self._factor} patches a side"], "set"
            )
        self._count = n * self._factor**2
        if self._count > params.candidates:
            raise InvalidSpec(
                [
                    f"candidates: {params.candidates} images give as many patches, {self._count} "
                    "are needed; raise it"
                ],
                "set",
            )
        self._real = RealImages(dataset, problem.device)
        self._real.require(self._count)
        self._images = torch.zeros(dataset.classes, n, C, H, W, device=problem.device)
        self.realism = torch.zeros(dataset.classes, self._count)

    @property
    def total_steps(self) -> int:
        """One for each class."""
        return self.problem.dataset.classes

    @torch.no_grad()
    def step(self, index: int) -> Mapping[str, float]:
        """Choose the patches of class `index` and put them together."""
        params, (H, W) = self.params, self.problem.dataset.facts.size
        stream = generator(self.problem.seed, "patches", index)
        numbers = self._real.of_class(index)
        numbers = numbers[torch.randperm(len(numbers), generator=stream)[: params.candidates]]
        boxes = crop_boxes(
            len(numbers) * params.crops,
            (H, W),
            params.smallest_crop,
            stream,
            aspects=(W / H, W / H),
        ).view(len(numbers), params.crops, 4)

        entropies = self._entropies(numbers, boxes, index)
        best, crop = entropies.min(dim=1)
        order = best.argsort(stable=True)[: self._count].cpu()
        chosen = boxes[order, crop.cpu()[order]]
        patches = self._patches(self._real.pixels(numbers[order]), chosen)
        self.realism[index] = -best.cpu()[order]
        self._images[index] = stitched(patches, self._factor, (H, W))
        return self._read(index, -self.realism[index].mean())

    def preview(self) -> Tensor:
        """The images put together so far; black ones of classes still to come."""
        return self._images.flatten(0, 1)

    def result(self) -> DistilledSet:
        """The images put together so far."""
        dataset = self.problem.dataset
        return DistilledSet(
            images=self.preview().cpu(),
            labels=labels_of(dataset.classes, self.problem.images_per_class),
        )

    def state(self) -> dict[str, Tensor]:
        """The images put together so far, and how real their patches are."""
        return {"images": self._images.clone(), "realism": self.realism.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._images.copy_(state["images"])
        self.realism.copy_(state["realism"])

    def _patches(self, images: Tensor, boxes: Tensor) -> Tensor:
        """(B, C, H // f, W // f) pixels in the boxes."""
        H, W = self.problem.dataset.facts.size
        size = (H // self._factor, W // self._factor)
        return resized(images, boxes, size).clamp_(0, 1)

    def _entropies(self, numbers: Tensor, boxes: Tensor, label: int) -> Tensor:
        """(M, crops) cross entropy of the teacher on each crop of each image."""
        crops = boxes.shape[1]
        parts = []
        for some in torch.split(
            torch.arange(len(numbers)), max(1, self.problem.rows_at_once // crops)
        ):
            images = self._real.pixels(numbers[some]).repeat_interleave(crops, dim=0)
            patches = self._patches(images, boxes[some].flatten(0, 1))
            x = _in_the_middle(self._teacher.normalize(patches), (images.shape[2], images.shape[3]))
            logits = self._teacher.network(x)
            labels = torch.full((len(x),), label, device=x.device)
            entropy = functional.cross_entropy(logits, labels, reduction="none")
            parts.append(entropy.view(-1, crops))
        return torch.cat(parts)


def stitched(patches: Tensor, factor: int, size: tuple[int, int]) -> Tensor:
    """Images of f × f patches: patch k · n + i is tile k, row by row, of image i.

    Args:
        patches: (n · f², C, h, w).
        factor: f.
        size: (H, W) of the images; where the factor does not divide it, the first tiles are a pixel
            larger.

    Returns:
        (n, C, H, W).
    """
    of_tile = patches.view(factor**2, -1, *patches.shape[1:])
    heights, widths = (
        [side // factor + (i < side % factor) for i in range(factor)] for side in size
    )
    rows = [
        torch.cat(
            [
                functional.interpolate(of_tile[i * factor + j], size=(height, width))
                for j, width in enumerate(widths)
            ],
            dim=3,
        )
        for i, height in enumerate(heights)
    ]
    return torch.cat(rows, dim=2)


def _in_the_middle(x: Tensor, size: tuple[int, int]) -> Tensor:
    """`x` with zeros around it, up to `size`."""
    height, width = size[0] - x.shape[2], size[1] - x.shape[3]
    top, left = height // 2, width // 2
    return functional.pad(x, (left, width - left, top, height - top))
