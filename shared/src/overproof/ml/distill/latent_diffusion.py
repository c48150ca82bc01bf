"""D4M: images that a diffusion model makes from the prototypes of each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from overproof.catalog.datasets import class_names
from overproof.catalog.diffusion import DiffusionParams
from overproof.errors import InvalidSpec, NonFiniteLoss
from overproof.ml.diffusion.latents import resized
from overproof.ml.diffusion.weights import load_pipeline
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.prototypes import Prototypes
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import labels_of
from overproof.ml.seeding import generator

_STEP = 8  # images of a step
_ROWS_OF_IMAGE = 64  # of a small network, that take about as much memory as an image here
_GREY = (0.299, 0.587, 0.114)


class LatentDiffusion(DistillationMethod[DiffusionParams]):
    """Add noise to each prototype, and let the diffusion model remove it again, told the class.

    The variant `medoid` takes the real image nearest to each prototype instead.

    Args:
        params: see `DiffusionParams`.
        problem: see `DistillationMethod`; the problem has prototypes.

    Raises:
        PluginUnavailable, InvalidData: the weights cannot be loaded; see `load_pipeline`.
        InvalidSpec: there are no prototypes, or the classes have no names to prompt with.
        MalformedArtifact: the prototypes are unusable.

    Source: arXiv:2407.15138, section 3.3; suduo94/D4M, gen_syn_image.py. Differs: the noise of an
    image comes from a generator of its own; images go straight to the size of the data set, not
    to 224 pixels and a file of bytes first; none is blackened by a safety checker.
    """

    def __init__(self, params: DiffusionParams, problem: Problem) -> None:
        super().__init__(params, problem)
        facts = problem.dataset.facts
        if problem.prototypes is None:
            raise InvalidSpec(["prototypes: this method begins with prototypes; name some"], "set")
        self._prototypes = Prototypes.read(
            problem.prototypes, classes=facts.classes, images_per_class=problem.images_per_class
        )
        self._count = facts.classes * problem.images_per_class
        self._names: tuple[str, ...] = ()
        self._pipeline: Any = None
        if params.variant == "diffusion":
            self._names = _names(params, problem)
            assert params.weights is not None
            self._pipeline = load_pipeline(params.weights, params.revision, problem.device)
        self._images = torch.zeros(self._count, facts.channels, *facts.size)

    @property
    def total_steps(self) -> int:
        """One for every 8 images; none for medoids."""
        return 0 if self._pipeline is None else -(-self._count // _STEP)

    def step(self, index: int) -> Mapping[str, float]:
        """Make the next 8 images."""
        rows = torch.arange(index * _STEP, min(self._count, (index + 1) * _STEP))
        at_once = max(1, self.problem.rows_at_once // _ROWS_OF_IMAGE)
        for part in torch.split(rows, at_once):
            self._images[part] = self._generate(part)
        return {}

    def result(self) -> DistilledSet:
        """The images made, or the medoids."""
        return DistilledSet(
            images=self._images.clone() if self._pipeline is not None else self._medoids(),
            labels=labels_of(self.problem.dataset.classes, self.problem.images_per_class),
        )

    def preview(self) -> Tensor | None:
        """The images made so far; those still to come are black."""
        return None if self._pipeline is None else self._images

    def state(self) -> dict[str, Tensor]:
        """The images made so far."""
        return {"images": self._images.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._images.copy_(state["images"])

    def _medoids(self) -> Tensor:
        real = RealImages(self.problem.dataset, torch.device("cpu"))
        numbers = [real.of_class(label)[row] for label, row in enumerate(self._prototypes.medoids)]
        return real.pixels(torch.cat(numbers))

    @torch.no_grad()
    def _generate(self, rows: Tensor) -> Tensor:
        """(B, C, H, W) pixels in [0, 1] of images by their numbers, on the CPU."""
        params, facts = self.params, self.problem.dataset.facts
        numbers = rows.tolist()
        made = self._pipeline(
            prompt=[self._names[number // self.problem.images_per_class] for number in numbers],
            negative_prompt=[params.negative_prompt] * len(numbers),
            image=self._prototypes.latents.flatten(0, 1)[rows],
            strength=params.strength,
            guidance_scale=params.guidance,
            num_inference_steps=params.denoising_steps,
            generator=[generator(self.problem.seed, "diffusion", number) for number in numbers],
            output_type="pt",
        ).images.float()
        if not bool(made.isfinite().all()):
            raise NonFiniteLoss(
                f"images {numbers[0]} to {numbers[-1]} are not finite; lower guidance"
            )
        images = resized(made, facts.size).clamp(0, 1).cpu()
        if facts.channels == 1:
            images = (images * torch.tensor(_GREY).view(3, 1, 1)).sum(dim=1, keepdim=True)
        return images


def _names(params: DiffusionParams, problem: Problem) -> tuple[str, ...]:
    """What the classes are called in prompts.

    Raises:
        InvalidSpec: nobody knows, or not as many names as classes are given.
    """
    dataset = problem.dataset
    if params.class_names is None:
        names = class_names(dataset.name)
    else:
        names = tuple(name.strip() for name in params.class_names.split(";"))
    if len(names) != dataset.classes or not all(names):
        raise InvalidSpec(
            [
                f"class_names: {dataset.name} has {dataset.classes} classes to prompt for, "
                f"{len(names)} names are known; write them all with ; between two, or ask for "
                "variant: medoid"
            ],
            "set",
        )
    return names
