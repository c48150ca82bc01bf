"""Training images by class: on the device as uint8, drawn in batches of all classes at once."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.errors import InvalidData
from overproof.ml.datasets.base import Dataset
from overproof.ml.train.evaluation import pixels_of


class RealImages:
    """The training images of a data set, class after class.

    Args:
        dataset: images and labels on the CPU; every class has some.
        device: where the images are kept, a byte a value.
    """

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        order = dataset.train_labels.argsort(stable=True)
        self._images = dataset.train_images[order].to(device)
        self.counts = torch.bincount(dataset.train_labels, minlength=dataset.classes)
        self._offsets = self.counts.cumsum(0) - self.counts

    @property
    def smallest(self) -> int:
        """Number of images of the smallest class."""
        return int(self.counts.min())

    def require(self, count: int) -> None:
        """Make sure that each class has `count` images.

        Raises:
            InvalidData: one has fewer.
        """
        if count > self.smallest:
            raise InvalidData(
                f"class {int(self.counts.argmin())} has {self.smallest} training images, "
                f"{count} different ones are asked for; ask for fewer"
            )

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Numbers of `count` different images of each class, drawn with equal chances.

        Args:
            count: at most `smallest`.
            generator: on the CPU.

        Returns:
            (K, count) int64 for `pixels`, on the CPU.

        Raises:
            InvalidData: a class has fewer images.
        """
        self.require(count)
        keys = torch.rand(len(self.counts), int(self.counts.max()), generator=generator)
        # Places beyond the end of a smaller class come last.
        keys[torch.arange(keys.shape[1]) >= self.counts[:, None]] = 2.0
        return self._offsets[:, None] + keys.topk(count, dim=1, largest=False).indices

    def first(self, count: int) -> Tensor:
        """(K, count) int64 numbers of the first images of each class, in stored order.

        Raises:
            InvalidData: a class has fewer images.
        """
        self.require(count)
        return self._offsets[:, None] + torch.arange(count)

    def draw_any(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` images of any class, drawn with replacement and with equal chances.

        Args:
            count: any number.
            generator: on the CPU.

        Returns:
            (count,) int64 numbers for `pixels`, and (count,) int64 labels, both on the CPU.
        """
        numbers = torch.randint(int(self.counts.sum()), (count,), generator=generator)
        return numbers, torch.searchsorted(self._offsets, numbers, right=True) - 1

    def of_class(self, label: int) -> Tensor:
        """(count,) int64 numbers of all images of one class, for `pixels`."""
        return self._offsets[label] + torch.arange(int(self.counts[label]))

    def pixels(self, numbers: Tensor) -> Tensor:
        """(*numbers.shape, C, H, W) float32 in [0, 1] on the device."""
        return pixels_of(self._images[numbers.to(self._images.device)])
