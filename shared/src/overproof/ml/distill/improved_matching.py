"""Improved distribution matching (IDM): canvases, trained networks and a term of cross entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.canvases import ImprovedMatchingParams, improved_matching_preset
from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.canvas import CanvasDescent, decode, encode
from overproof.ml.distill.distribution_matching import matching_gradient
from overproof.ml.distill.passes import RealPasses
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import augmented, labels_of
from overproof.ml.distill.trainee import Trainee
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator

_MEMORY = 0.9  # of the running accuracy, for each training step
_EVALUATED_EVERY = 1_000  # iterations of the published code, which then forgets accuracies


class _Member:
    """A network of the queue.

    Attributes:
        trainee: the network with its momentum.
        accuracy: (), accuracy in training, in [0, 1]; 0 for a new network.
        steps: (), of training that `accuracy` is the mean of; counted for the variant of the paper.
    """

    def __init__(self, trainee: Trainee, accuracy: Tensor) -> None:
        self.trainee = trainee
        self.accuracy = accuracy
        self.steps = torch.zeros_like(accuracy)

    def forget(self) -> None:
        """Start the accuracy anew."""
        self.accuracy = torch.zeros_like(self.accuracy)
        self.steps = torch.zeros_like(self.steps)


class ImprovedMatching(DistillationMethod[ImprovedMatchingParams]):
    """Match mean features under a network drawn from a queue of networks in training.

    The loss of a class is the squared distance of mean features plus the cross entropy of its
    synthetic images, the latter times `entropy_weight` and the network's accuracy in percent, so
    that networks which know nothing have no say.

    Args:
        params: see `ImprovedMatchingParams`.
        problem: see `DistillationMethod`. Where the smallest class has fewer images than
            `real_batch`, as many as it has are drawn of every class.

    Raises:
        InvalidData: a class has fewer images than its canvases have tiles.

    Source: arXiv:2307.09742, sections 3.2 to 3.4; uitrbn/IDM. Differs: the accuracy is a running
    mean, which the reference resets at every evaluation; tiles lie row by row; steps of a sweep
    are computed together, see `CanvasDescent`; without canvases (`factor` 1) real images are not
    selected by their loss.
    """

    def __init__(self, params: ImprovedMatchingParams, problem: Problem) -> None:
        super().__init__(params, problem)
        dataset = problem.dataset
        preset = improved_matching_preset(dataset.name, problem.images_per_class)
        self._real = RealImages(dataset, problem.device)
        self._real_batch = min(params.real_batch or preset.real_batch, self._real.smallest)
        self._families = dsa.strategy_of(params.strategy, mirrors=dataset.mirrors)
        self._entropy_weight = (
            preset.entropy_weight if params.entropy_weight is None else params.entropy_weight
        )
        self._interval = params.interval or preset.interval
        self._training_steps = params.training_steps or preset.training_steps
        self._normalizer = problem.build()
        self._tiles = problem.images_per_class * params.factor**2
        self._classes_at_once = max(1, problem.rows_at_once // (self._real_batch + self._tiles))
        self._passes = RealPasses(
            problem,
            self._normalizer.network,
            images=self.total_steps * dataset.classes * self._real_batch,
        )
        self._canvases = CanvasDescent(self._initial())
        self._queue = [
            self._member(problem.build("first-network", number).network)
            for number in range(params.first_networks)
        ]

    @property
    def total_steps(self) -> int:
        """Iterations."""
        return self.params.iterations

    def step(self, index: int) -> Mapping[str, float]:
        """Match on one network of the queue, then train some of them."""
        params = self.params
        if index % self._interval == 0:
            self._queue.append(self._member(self.problem.build("network", index).network))
            del self._queue[: -params.networks]
        if params.variant == "paper" and index % _EVALUATED_EVERY == 0:
            for member in self._queue:
                member.forget()
        stream = generator(self.problem.seed, "queue", index)
        drawn = int(torch.randint(len(self._queue), (1,), generator=stream))
        loss = self._match(self._queue[drawn], index)
        order = torch.randperm(len(self._queue), generator=stream).tolist()
        for number in order[: params.networks_trained]:
            self._train(self._queue[number], stream)
        return self._read(index, loss)

    def result(self) -> DistilledSet:
        """The canvases as they are now."""
        problem = self.problem
        pixels = self._normalizer.denormalize(self._canvases.values)
        return DistilledSet(
            images=pixels.flatten(0, 1).cpu(),
            labels=labels_of(problem.dataset.classes, problem.images_per_class),
            canvas_factor=self.params.factor,
        )

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self.result().images

    def demand(self) -> Demand:
        """Images of a group of classes, and what is kept of the decoded ones for a gradient."""
        costs = NetworkCosts.of(self._normalizer.network, self.problem.dataset.facts)
        together = min(self._classes_at_once, self.problem.dataset.classes)
        passing = self._passes.bytes_at_once(costs, self._real_batch, together)
        tile = COPIES * costs.image + costs.first + 2 * costs.largest
        return Demand(
            [
                Part("", 1, 2 * costs.parameters + passing),
                Part("real_batch", self._real_batch, together * COPIES * costs.image),
                Part(
                    "images_per_class",
                    self.problem.images_per_class,
                    together * self.params.factor**2 * tile,
                ),
            ]
        )

    def notes(self) -> Mapping[str, str | int]:
        """How real images are computed."""
        return {"means": self._passes.means.value, "means_reason": self._passes.reason}

    def state(self) -> dict[str, Tensor]:
        """Canvases, velocity and the queue, the oldest network first."""
        state = self._canvases.state()
        state["accuracies"] = torch.stack([member.accuracy for member in self._queue])
        state["accuracy_steps"] = torch.stack([member.steps for member in self._queue])
        for number, member in enumerate(self._queue):
            state |= member.trainee.state(f"{number}.")
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._canvases.load_state(state)
        self._queue = []
        for number, accuracy in enumerate(state["accuracies"].to(self.problem.device)):
            member = self._member(self.problem.build().network)
            member.trainee.load_state(state, f"{number}.")
            member.accuracy = accuracy.clone()
            member.steps = state["accuracy_steps"][number].to(accuracy, copy=True)
            self._queue.append(member)

    def _initial(self) -> Tensor:
        problem, params = self.problem, self.params
        facts = problem.dataset.facts
        shape = (facts.classes, problem.images_per_class, facts.channels, *facts.size)
        stream = generator(problem.seed, "initial-images")
        if params.init == "noise":
            return torch.randn(shape, generator=stream).to(problem.device)
        images = self._real.pixels(self._real.draw(self._tiles, stream)).flatten(0, 1)
        return self._normalizer.normalize(encode(images, params.factor, "bilinear").view(shape))

    def _member(self, network: Network) -> _Member:
        params = self.params
        trainee = Trainee(
            network,
            learning_rate=params.network_learning_rate,
            momentum=params.network_momentum,
            weight_decay=params.network_weight_decay,
        )
        return _Member(trainee, torch.zeros((), device=self.problem.device))

    def _match(self, member: _Member, index: int) -> Tensor:
        """Move all canvases once; the loss before that, summed over classes."""
        problem, params = self.problem, self.params
        classes = problem.dataset.classes
        network = member.trainee.network.eval()
        numbers = self._real.draw(self._real_batch, generator(problem.seed, "real", index))
        drawn = dsa.draw(
            self._families, generator(problem.seed, "augmentation", index), classes, siamese=True
        )

        def batches(canvases: Tensor, group: slice) -> tuple[Tensor, Tensor]:
            # As pixels, so that networks later see what was matched, whatever the size.
            decoded = decode(self._normalizer.denormalize(canvases).flatten(0, 1), params.factor)
            decoded = decoded.view(len(canvases), self._tiles, *decoded.shape[1:])
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            synthetic = self._normalizer.normalize(decoded)
            return augmented(real, drawn, group), augmented(synthetic, drawn, group)

        return self._canvases.step_in_turn(
            lambda values: matching_gradient(
                network,
                values,
                batches,
                self._passes,
                classes_at_once=self._classes_at_once,
                entropy_weight=self._entropy_weight * 100 * member.accuracy,
            ),
            learning_rate=params.learning_rate,
            momentum=params.momentum,
        )

    def _train(self, member: _Member, stream: torch.Generator) -> None:
        """Some steps on real images without augmentation."""
        for _ in range(self._training_steps):
            numbers, labels = self._real.draw_any(self.params.network_batch, stream)
            labels = labels.to(self.problem.device)
            logits = member.trainee.learn(
                self._normalizer.normalize(self._real.pixels(numbers)), labels
            )
            hit = (logits.argmax(dim=1) == labels).float().mean()
            member.steps = member.steps + 1
            kept = _MEMORY if self.params.variant == "default" else 1 - 1 / member.steps
            member.accuracy = kept * member.accuracy + (1 - kept) * hit
