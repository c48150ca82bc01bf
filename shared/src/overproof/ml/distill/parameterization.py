"""Efficient parameterisation (IDC): gradient matching of canvases that hold several images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from overproof.catalog.canvases import ParameterizationParams, parameterization_preset
from overproof.errors import InvalidSpec
from overproof.ml.augment import composed, dsa
from overproof.ml.augment.cutmix import cutmix
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.canvas import CanvasDescent, decode, encode
from overproof.ml.distill.distances import DISTANCES
from overproof.ml.distill.gradient_core import Batches, GradientCore
from overproof.ml.distill.gradient_matching import STATISTICS_BATCH, settle_batch_norms
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import augmented, labels_of
from overproof.ml.distill.trainee import Trainee
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import has_batch_statistics

_NETWORK = "network."  # prefix of the network's tensors in the state


class EfficientParameterization(DistillationMethod[ParameterizationParams]):
    """Move canvases so that the images in them teach a network what real images would teach it.

    Each iteration draws a network. It then alternates, `outer_loop` times, a step of all canvases
    towards equal gradients of the convolutions, and training on real images. A step of the method
    is one such alternation; after the last of an iteration the network is not trained any more.
    Canvases are pixels, clamped to [0, 1] when an iteration begins.

    Args:
        params: see `ParameterizationParams`.
        problem: see `DistillationMethod`. Where the smallest class has fewer images than
            `real_batch`, as many as it has are drawn of every class.

    Raises:
        InvalidSpec: the network has no convolutions.
        InvalidData: a class has fewer images than its canvases have tiles.

    Source: arXiv:2205.14959, algorithm 1; snu-mllab/Efficient-Dataset-Condensation, condense.py.
    Differs: initial and real images are drawn at random, where the reference takes the first
    images of a class and shuffled epochs; tiles end where `decode` cuts them, also where the
    factor does not divide the size; steps of a sweep are computed together, see `CanvasDescent`.
    """

    def __init__(self, params: ParameterizationParams, problem: Problem) -> None:
        super().__init__(params, problem)
        dataset = problem.dataset
        preset = parameterization_preset(dataset.name)
        self._real = RealImages(dataset, problem.device)
        self._real_batch = min(self.real_batch(), self._real.smallest)
        self._families = dsa.strategy_of(params.strategy, mirrors=dataset.mirrors)
        self._network_families = dsa.strategy_of(params.network_strategy, mirrors=dataset.mirrors)
        self._normalizer = problem.build()
        names = [
            name
            for name, parameter in self._normalizer.network.named_parameters()
            if parameter.ndim > 2
        ]
        if not names:
            raise InvalidSpec(
                ["network: gradients of convolutions are matched; name one with some"],
                "set",
            )
        self._learning_rate = params.learning_rate or preset.learning_rate_for(
            problem.images_per_class, dataset.facts.size
        )
        self._network_images = params.network_images or preset.network_images
        tiles = problem.images_per_class * params.factor**2
        self._synthetic_batch = min(params.synthetic_batch, tiles)
        self.distance_name = params.distance or preset.distance
        self._core = GradientCore(
            problem,
            self._normalizer.network,
            names,
            DISTANCES[self.distance_name],
            real_batch=self._real_batch,
            synthetic_batch=self._synthetic_batch,
            steps=self.total_steps,
        )
        self._canvases = CanvasDescent(self._initial(tiles))
        self._trainee: Trainee | None = None

    @property
    def total_steps(self) -> int:
        """Iterations times outer loops."""
        return self.params.iterations * self.params.outer_loop

    def step(self, index: int) -> Mapping[str, float]:
        """Match once, then train the network unless the iteration ends here."""
        iteration, turn = divmod(index, self.params.outer_loop)
        if turn == 0:
            self._canvases.clamp(0, 1)
        if turn == 0 or self._trainee is None:
            self._trainee = self._taught(self.problem.build("network", iteration).network)
            self.prepare(self._trainee, iteration)
        loss = self._match(self._trainee.network, index)
        if turn + 1 < self.params.outer_loop:
            self._train(self._trainee, index)
        return self._read(index, loss)

    def result(self) -> DistilledSet:
        """The canvases as they are now."""
        problem = self.problem
        return DistilledSet(
            images=self._canvases.values.flatten(0, 1).cpu(),
            labels=labels_of(problem.dataset.classes, problem.images_per_class),
            canvas_factor=self.params.factor,
        )

    def demand(self) -> Demand:
        """The most of a step of matching and of one of training."""
        costs = NetworkCosts.of(self._normalizer.network, self.problem.dataset.facts)
        matching = self._core.demand(costs, self._real_batch, "synthetic_batch")
        training = Demand(
            [
                Part("", 1, 3 * costs.parameters),
                Part(
                    "network_batch",
                    self.params.network_batch,
                    COPIES * costs.image + costs.first + 2 * costs.largest,
                ),
            ]
        )
        return max(matching, training, key=lambda each: each.total)

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self.result().images

    def notes(self) -> Mapping[str, str | int]:
        """Of the core."""
        return self._core.notes()

    def state(self) -> dict[str, Tensor]:
        """Canvases, velocity, form, and the network in the middle of an iteration."""
        state = self._canvases.state() | self._core.state()
        return state | (self._trainee.state(_NETWORK) if self._trainee else {})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._canvases.load_state(state)
        self._core.load_state(state)
        self._trainee = None
        if any(name.startswith(_NETWORK) for name in state):
            self._trainee = self._taught(self.problem.build().network)
            self._trainee.load_state(state, _NETWORK)

    def initial_numbers(self, count: int) -> Tensor:
        """(K, count) numbers of the real images that the canvases begin with."""
        if self.params.variant == "paper":
            return self._real.first(count)
        return self._real.draw(count, generator(self.problem.seed, "initial-images"))

    def real_batch(self) -> int:
        """Real images of each class in a step, if there are as many."""
        return self.params.real_batch

    def real_numbers(self, network: Network, index: int) -> Tensor:
        """(K, any) numbers of the real images of step `index`."""
        return self._real.draw(self._real_batch, generator(self.problem.seed, "real", index))

    def gradient(self, network: Network, values: Tensor, batches: Batches) -> tuple[Tensor, Tensor]:
        """Where to move canvases; see `GradientCore.gradient`."""
        return self._core.gradient(network, values, batches)

    def prepare(self, trainee: Trainee, iteration: int) -> None:
        """What a new network goes through before it is matched on: nothing."""

    def _initial(self, tiles: int) -> Tensor:
        problem, params = self.problem, self.params
        facts = problem.dataset.facts
        shape = (facts.classes, problem.images_per_class, facts.channels, *facts.size)
        if params.init == "noise":
            noise = torch.randn(shape, generator=generator(problem.seed, "initial-images"))
            return (noise / 4 + 0.5).clamp(0, 1).to(problem.device)
        images = self._real.pixels(self.initial_numbers(tiles))
        return encode(images.flatten(0, 1), params.factor, "nearest").view(shape)

    def _taught(self, network: Network) -> Trainee:
        return Trainee(
            network,
            learning_rate=self.params.network_learning_rate,
            momentum=self.params.network_momentum,
            weight_decay=self.params.network_weight_decay,
        )

    def _match(self, network: Network, index: int) -> Tensor:
        """Move all canvases once; the loss before that, summed over classes."""
        problem, params = self.problem, self.params
        classes, seed = problem.dataset.classes, problem.seed
        numbers = self.real_numbers(network, index)
        drawn = composed.draw(
            self._families, generator(seed, "augmentation", index), classes, siamese=True
        )
        tiles = problem.images_per_class * params.factor**2
        keys = torch.rand(classes, tiles, generator=generator(seed, "synthetic", index))
        kept = keys.topk(self._synthetic_batch, dim=1).indices.sort(dim=1).values.to(problem.device)
        network.train()
        if has_batch_statistics(network):
            count = min(STATISTICS_BATCH, self._real.smallest)
            some = self._real.draw(count, generator(seed, "statistics", index))
            settle_batch_norms(
                network, self._normalizer.normalize(self._real.pixels(some)).flatten(0, 1)
            )

        def batches(canvases: Tensor, group: slice) -> tuple[Tensor, Tensor]:
            decoded = decode(canvases.flatten(0, 1), params.factor)
            decoded = decoded.view(len(canvases), tiles, *decoded.shape[1:])
            rows = torch.arange(len(canvases), device=kept.device).unsqueeze(1)
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            synthetic = self._normalizer.normalize(decoded[rows, kept[group]])
            for stage in drawn:
                real = augmented(real, stage, group)
                synthetic = augmented(synthetic, stage, group)
            return real, synthetic

        return self._canvases.step_in_turn(
            lambda values: self.gradient(network, values, batches),
            learning_rate=self._learning_rate,
            momentum=params.momentum,
        )

    def _train(self, trainee: Trainee, index: int) -> None:
        self.teach(trainee, self._network_images, "network-training", index)

    def teach(self, trainee: Trainee, images: int, *labels: str | int) -> None:
        """Show a network real images, rounded up to whole batches.

        Args:
            trainee: changed.
            images: how many.
            labels: purpose of the random stream, as in `seeding.generator`.
        """
        params, problem = self.params, self.problem
        stream = generator(problem.seed, *labels)
        for _ in range(-(-images // params.network_batch)):
            numbers, classes = self._real.draw_any(params.network_batch, stream)
            x = self._normalizer.normalize(self._real.pixels(numbers))
            drawn = composed.draw(self._network_families, stream, len(x), siamese=False)
            x, targets = composed.apply(x, drawn), classes.to(problem.device)
            if float(torch.rand((), generator=stream)) < params.cutmix_probability:
                x, targets = cutmix(x, targets, problem.dataset.classes, stream)
            trainee.learn(x, targets)
