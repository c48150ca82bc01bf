"""Gradient matching (DC), and the same under one augmentation for both batches (DSA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from overproof.catalog.distillation import GradientMatchingParams
from overproof.ml.augment import dsa
from overproof.ml.distill.base import DistillationMethod, DistilledSet, Problem
from overproof.ml.distill.distances import DISTANCES, Distance
from overproof.ml.distill.real_images import RealImages
from overproof.ml.distill.synthetic import SyntheticImages, augmented, labels_of
from overproof.ml.models.base import Network
from overproof.ml.seeding import generator
from overproof.ml.train.means import has_batch_statistics

# Images per class → outer and inner loops of the reference code, which refuses other sizes.
_LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}
STATISTICS_BATCH = 16  # real images of each class that batch norms settle on

Batches = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


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
        self._classes_at_once = classes_at_once(
            problem, self._real_batch + problem.images_per_class
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

    def preview(self) -> Tensor:
        """The images as they are now."""
        return self._synthetic.distilled().images

    def state(self) -> dict[str, Tensor]:
        """Images, velocity, and the network in the middle of an iteration."""
        state = self._synthetic.state()
        if self._network is not None:
            for name, tensor in self._network.state_dict().items():
                state[f"network.{name}"] = tensor.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._synthetic.load_state(state)
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
        names = [
            name
            for name, parameter in network.named_parameters()
            if parameter.ndim > 1 or params.distance != "layerwise-cosine"
        ]

        def batches(values: Tensor, group: slice) -> tuple[Tensor, Tensor]:
            real = self._normalizer.normalize(self._real.pixels(numbers[group]))
            return augmented(real, drawn, group), augmented(values, drawn, group)

        gradient, loss = matching_gradient(
            network,
            names,
            DISTANCES[params.distance],
            self._synthetic.values,
            batches,
            classes_at_once=self._classes_at_once,
        )
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


def classes_at_once(problem: Problem, rows_of_class: int) -> int:
    """How many classes go into one call of `class_gradients`.

    Fused, a GPU is busy; on a CPU the grouped convolutions of the fused form are four times slower
    than one class after another.

    Args:
        problem: device, and how many images may be sent through a network at once.
        rows_of_class: real and synthetic images of one class.
    """
    if problem.device.type != "cuda":
        return 1
    return max(1, problem.rows_at_once // rows_of_class)


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


def matching_gradient(
    network: Network,
    names: Sequence[str],
    distance: Distance,
    values: Tensor,
    batches: Batches,
    *,
    classes_at_once: int,
) -> tuple[Tensor, Tensor]:
    """Where to move synthetic images so that they teach what real ones teach.

    Args:
        network: normalised images → logits; images must not influence each other.
        names: of the parameters whose gradients are matched.
        distance: between the gradients of real and synthetic images; see `distances`.
        values: (K, n, C, H, W) what is optimised, of all classes.
        batches: values of some classes and which classes these are → normalised real and synthetic
            images (k, m, C, H, W) as the network sees them, the latter differentiable by the
            values.
        classes_at_once: bounds memory; the result is the same but for rounding.

    Returns:
        The gradient like `values`, and the distance summed over classes; no history.
    """
    total = torch.zeros((), device=values.device)
    gradient = torch.empty_like(values)
    for first in range(0, len(values), classes_at_once):
        group = slice(first, first + classes_at_once)
        labels = torch.arange(len(values), device=values.device)[group]
        leaf = values[group].detach().requires_grad_(True)
        real, synthetic = batches(leaf, group)
        target = class_gradients(network, names, real, labels)
        ours = class_gradients(network, names, synthetic, labels)
        loss = distance(ours, [each.detach() for each in target]).sum()
        (gradient[group],) = torch.autograd.grad(loss, leaf)
        total += loss.detach()
    return gradient, total


def class_gradients(
    network: nn.Module, names: Sequence[str], x: Tensor, labels: Tensor
) -> list[Tensor]:
    """Gradients of each class's mean cross entropy by some parameters.

    Args:
        network: normalised images → logits; images must not influence each other.
        names: of the parameters, with respect to which the gradients are taken.
        x: (K, n, C, H, W) normalised images of K classes; the result is differentiable by them.
        labels: (K,) int64.

    Returns:
        For each name, (K, *shape of the parameter).
    """
    parameters = dict(network.named_parameters())
    if len(x) == 1:
        logits = network(x[0])
        loss = functional.cross_entropy(logits, labels.expand(len(logits)))
        chosen = [parameters[name] for name in names]
        gradients = torch.autograd.grad(loss, chosen, create_graph=x.requires_grad)
        return [gradient.unsqueeze(0) for gradient in gradients]

    def loss_of(chosen: Mapping[str, Tensor], images: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network, {**fixed, **chosen}, (images,))
        return functional.cross_entropy(logits, label.expand(len(images)))

    fixed = {name: tensor.detach() for name, tensor in parameters.items()}
    fixed |= dict(network.named_buffers())
    by_name = vmap(grad(loss_of), in_dims=(None, 0, 0))(
        {name: fixed[name] for name in names}, x, labels
    )
    return [by_name[name] for name in names]
