"""Prototypes: centres of the latents of each class, by k-means in small batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from overproof.errors import MalformedArtifact, ShapeError
from overproof.ml.diffusion.latents import LatentSpace
from overproof.ml.distill.clustering import centres_of, nearest_rows, squared_distances
from overproof.ml.distill.real_images import RealImages
from overproof.ml.seeding import generator


def mini_batch_centres(
    points: Tensor, clusters: int, *, batch: int, generator: torch.Generator
) -> Tensor:
    """Centres of clusters by one pass over the points in batches.

    Each batch is assigned to the centres as they are, which then move to the mean of all points
    that they were ever given. The first batch gives the centres to begin with, by k-means++; a
    centre that is given nothing stays.

    Args:
        points: (N, D) floating point, in the order in which they are to be seen.
        clusters: k, at most N.
        batch: points of a step, at least k.
        generator: on the CPU.

    Returns:
        (k, D) centres.

    Raises:
        ShapeError: fewer points or smaller batches than clusters.

    Source: Sculley 2010, algorithm 1, as `partial_fit` of scikit-learn's MiniBatchKMeans without
    reassignment. Differs: the last, smaller batch counts too.
    """
    if clusters > min(batch, len(points)):
        raise ShapeError(
            f"batches of {batch} of {len(points)} points cannot form {clusters} clusters"
        )
    first = points[:batch]
    centres: Tensor = centres_of(
        first.unsqueeze(0), [len(first)], clusters, rounds=0, generator=generator
    )[0]
    given: Tensor = torch.zeros(clusters, 1, device=points.device, dtype=points.dtype)
    for part in torch.split(points, batch):
        owner = squared_distances(part.unsqueeze(0), centres.unsqueeze(0))[0].argmin(dim=1)
        member: Tensor = functional.one_hot(owner, clusters).to(points)
        gained = member.sum(dim=0).unsqueeze(1)
        given = given + gained
        centres = centres + (member.T @ part - gained * centres) / given.clamp(min=1)
    return centres


@dataclass(frozen=True)
class Prototypes:
    """Prototypes of all classes.

    Attributes:
        latents: (K, n, *shape) float32, the centres.
        medoids: (K, n) int64, which image of the class is nearest to each; different ones, counted
            from 0 in the stored order of the class.
    """

    latents: Tensor
    medoids: Tensor

    def write(self, path: Path) -> None:
        """Write to `path` as safetensors; equal prototypes give equal bytes."""
        save_file({"latents": self.latents.contiguous(), "medoids": self.medoids}, path)

    @classmethod
    def read(cls, path: Path, *, classes: int, images_per_class: int) -> Prototypes:
        """Read what `write` wrote.

        Raises:
            MalformedArtifact: the file is truncated, or holds no prototypes of so many images.
        """
        try:
            tensors = load_file(path)
            made = cls(tensors["latents"], tensors["medoids"])
        except (SafetensorError, OSError, KeyError) as error:
            raise MalformedArtifact(f"{path} holds no prototypes ({error})") from None
        expected = (classes, images_per_class)
        if made.latents.shape[:2] != expected or made.medoids.shape != expected:
            raise MalformedArtifact(
                f"{path} holds {tuple(made.latents.shape[:2])} prototypes, not {expected}; make "
                "them again"
            )
        return made


class PrototypeSearch:
    """Encodes the classes one after another and clusters each; a `Resumable`, a step a class.

    Args:
        space: where distances are measured.
        real: the images.
        facts: (C, (H, W)) of an image.
        sizes: numbers of prototypes that are looked for, among the same latents.
        expand: times a size are the points of a step of k-means.
        seed: of the order of the images, their noise and the first centres.
        device: of the latents.
        rows_at_once: images that are encoded at once.

    Raises:
        InvalidData: a class has fewer images than prototypes.

    Source: arXiv:2407.15138, section 3.2; suduo94/D4M, gen_prototype.py. Differs: what is left
    over of a class counts, where the code feeds that of the last class alone.
    """

    def __init__(
        self,
        space: LatentSpace,
        real: RealImages,
        facts: tuple[int, tuple[int, int]],
        sizes: Sequence[int],
        *,
        expand: int,
        seed: int,
        device: torch.device,
        rows_at_once: int,
    ) -> None:
        real.require(max(sizes))
        self._space = space
        self._real = real
        self._sizes = tuple(sizes)
        self._expand = expand
        self._seed = seed
        self._device = device
        self._rows_at_once = rows_at_once
        self._shape = space.shape(*facts)
        classes = len(real.counts)
        self._latents = {size: torch.zeros(classes, size, *self._shape) for size in sizes}
        self._medoids = {
            size: torch.zeros(classes, size, dtype=torch.int64) for size in self._sizes
        }

    @property
    def total_steps(self) -> int:
        """Number of classes."""
        return len(self._real.counts)

    def step(self, index: int) -> Mapping[str, float]:
        """Encode class `index` and cluster its latents; their mean distance to the nearest."""
        numbers = self._real.of_class(index)
        order = torch.randperm(len(numbers), generator=generator(self._seed, "order", index))
        # Drawn at once, so that an image's noise does not depend on how many go together.
        noise = torch.randn(
            len(numbers), *self._shape, generator=generator(self._seed, "latents", index)
        )
        encoded = [
            self._space.encode(self._real.pixels(numbers[rows]), noise[rows].to(self._device))
            for rows in torch.split(order, self._rows_at_once)
        ]
        points = torch.cat(encoded).flatten(1)
        distance = 0.0
        for size in self._sizes:
            centres = mini_batch_centres(
                points,
                size,
                batch=self._expand * size,
                generator=generator(self._seed, "clusters", index, size),
            )
            rows = nearest_rows(points.unsqueeze(0), [len(points)], centres.unsqueeze(0))[0]
            self._latents[size][index] = centres.view(size, *self._shape).cpu()
            self._medoids[size][index] = order[rows.cpu()]
            squares = squared_distances(points.unsqueeze(0), centres.unsqueeze(0))[0]
            distance = float(squares.min(dim=1).values.mean().sqrt())
        return {"distance": distance}

    def prototypes(self, size: int) -> Prototypes:
        """Those of one of the sizes, after the last step."""
        return Prototypes(self._latents[size], self._medoids[size])

    def state(self) -> dict[str, Tensor]:
        """What is found so far; copies."""
        return {
            f"{name}.{size}": tensor.clone()
            for name, of_size in (("latents", self._latents), ("medoids", self._medoids))
            for size, tensor in of_size.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        for size in self._sizes:
            self._latents[size].copy_(state[f"latents.{size}"])
            self._medoids[size].copy_(state[f"medoids.{size}"])
