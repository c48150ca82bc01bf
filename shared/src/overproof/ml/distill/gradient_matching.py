"""Gradient matching (DC), and the same under one augmentation for both batches (DSA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from overproof.catalog.distillation import GradientMatchingParams
from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.distances import DISTANCES
from overproof.ml.distill.gradient_core import GradientCore
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import SyntheticImages, augmented, labels_of
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import has_batch_statistics

# Images per class → outer and inner loops of the reference code, which refuses other sizes.
_LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}
STATISTICS_BATCH = 16  # real images of each class that batch norms settle on


class GradientMatching(DistillationMethod[GradientMatchingParams]):
    """Move the images so that they teach a network what real images would teach it.

    Each iteration draws a network. It then alternates, `outer_loop` times, a step of all images
    towards equal gradients on synthetic and real images of each class, and `inner_loop` epochs of
    training on the synthetic images. A step of the method is one such alternation; after the last
    of an iteration the network is not trained any more.

    Args:
        params, problem: see `DistillationMethod`. Where the smallest class has fewer images than
            `real_batch`, as many as it has are drawn of every class.

    Source: arXiv:2006.05929, algorithm 1; arXiv:2102.08259, equation 3;
    VICO-UoE/DatasetCondensation, main.py. Differs: exactly `iterations` iterations instead of one
    more; loops for other sizes than the published ones, see `GradientMatchingParams`.
    """

    def __init__(self, params: GradientMatchingParams, problem: Problem) -> None:
        super().__init__(params, problem)
        dataset = problem.dataset
        self._real = RealImages(dataset, problem.device)
        self._real_batch = min(params.real_batch, self._real.smallest)
        self._families = dsa.strategy_of(params.strategy, mirrors=dataset.mirrors)
        self._normalizer = problem.build()
        self._synthetic = SyntheticImages(problem, self._real, params.init, self._normalizer)
        self._labels = labels_of(dataset.classes, problem.images_per_class).to(problem.device)
        outer, inner = loops_for(problem.images_per_class)
        self._outer_loop = params.outer_loop or outer
        self._inner_loop = params.inner_loop or inner
        network = self._normalizer.network
        self._core = GradientCore(
            problem,
            network,
            [
                name
                for name, parameter in network.named_parameters()
                if parameter.ndim > 1 or params.distance != "layerwise-cosine"
            ],
            DISTANCES[params.distance],
            real_batch=self._real_batch,
            synthetic_batch=problem.images_per_class,
            steps=self.total_steps,
        )
        self._network: Network | None = None

    @property
    def total_steps(self) -> int:
        """Iterations times outer loops."""
        return self.params.iterations * self._outer_loop

    def step(self, index: int) -> Mapping[str, float]:
        """Match once, then train the network unless the iteration ends here."""
        iteration, turn = divmod(index, self._outer_loop)
        if turn == 0 or self._network is None:
            self._network = self.problem.build("network", iteration).network
        loss = self._match(self._network, index)
        if turn + 1 < self._outer_loop:
            self._train(self._network, index)
        return self._read(index, loss)

    def result(self) -> DistilledSet:
        """The images as they are now."""
        return self._synthetic.distilled()

    def demand(self) -> Demand:
        """The most of a step of matching and of one of training."""
        problem, params = self.problem, self.params
        costs = NetworkCosts.of(self._normalizer.network, problem.dataset.facts)
        matching = self._core.demand(costs, self._real_batch, "images_per_class")
        if self._outer_loop == 1:
            return matching
        images = problem.dataset.classes * problem.images_per_class
        training = Demand(
            [
                Part("", 1, 2 * costs.parameters),
                Part(
                    "network_batch",
                    min(params.network_batch, images),
                    COPIES * costs.image + costs.first + 2 * costs.largest,
                ),
            ]
        )
        return max(matching, training, key=lambda each: each.total)

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self._synthetic.distilled().images

    def notes(self) -> Mapping[str, str | int]:
        """Of the core."""
        return self._core.notes()

    def state(self) -> dict[str, Tensor]:
        """Images, velocity, form, and the network in the middle of an iteration."""
        state = self._synthetic.state() | self._core.state()
        if self._network is not None:
            for name, tensor in self._network.state_dict().items():
                state[f"network.{name}"] = tensor.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)
        self._core.load_state(state)
        weights = {
            name.removeprefix("network."): tensor
            for name, tensor in state.items()
            if name.startswith("network.")
        }
        self._network = None
        if weights:
            self._network = self.problem.build().network
            self._network.load_state_dict(weights)

    def _match(self, network: Network, index: int) -> Tensor:
        """Move all images once; the loss before that, summed over classes."""
        problem, params = self.problem, self.params
        classes = problem.dataset.classes
        network.train()
        if has_batch_statistics(network):
            self._settle_batch_norms(network, index)
        numbers = self._real.draw(self._real_batch, generator(problem.seed, "real", index))
        drawn = dsa.draw(
            self._families, generator(problem.seed, "augmentation", index), classes, siamese=True
        )

        def batches(values: Tensor, group: slice) -> tuple[Tensor, Tensor]:
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            return augmented(real, drawn, group), augmented(values, drawn, group)

        gradient, loss = self._core.gradient(network, self._synthetic.values, batches)
        self._synthetic.step(gradient, learning_rate=params.learning_rate, momentum=params.momentum)
        return loss

    def _train(self, network: Network, index: int) -> None:
        """Train on the synthetic images for the inner loop's epochs."""
        params, seed = self.params, self.problem.seed
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), lr=params.network_learning_rate)
        images = self._synthetic.values.flatten(0, 1)
        for epoch in range(self._inner_loop):
            stream = generator(seed, "inner-loop", index, epoch)
            order = torch.randperm(len(images), generator=stream).to(images.device)
            for rows in torch.split(order, params.network_batch):
                drawn = dsa.draw(self._families, stream, len(rows), siamese=False)
                logits = network(dsa.apply(images[rows], drawn))
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(logits, self._labels[rows]))
                optimizer.step()

    def _settle_batch_norms(self, network: Network, index: int) -> None:
        """Let batch norms see real images of all classes, then hold their statistics."""
        count = min(STATISTICS_BATCH, self._real.smallest)
        numbers = self._real.draw(count, generator(self.problem.seed, "statistics", index))
        real = self._normalizer.normalize(self._real.pixels(numbers))
        settle_batch_norms(network, real.flatten(0, 1))


def loops_for(images_per_class: int) -> tuple[int, int]:
    """Outer and inner loops for a number of images per class.

    The published ones, and between them n and round(500 / n), about the same product.
    """
    n = images_per_class
    return _LOOPS.get(n, (n, max(1, round(500 / n))))


def settle_batch_norms(network: Network, x: Tensor) -> None:
    """Let batch norms see images of all classes, then hold their statistics.

    Args:
        network: in training mode.
        x: (B, C, H, W) normalised images.
    """
    with torch.no_grad():
        network(x)
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
