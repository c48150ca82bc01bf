"""The core of gradient matching: how far synthetic images teach otherwise than real ones.

It has two forms that differ by rounding: one class after another, and several classes side by side
in one call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from overproof.ml.distill.base import Problem
from overproof.ml.distill.distances import Distance
from overproof.ml.distill.passes import RealPasses, class_gradients
from overproof.ml.memory import COPIES, Demand, NetworkCosts, Part
from overproof.ml.models.base import Network

_log = logging.getLogger(__name__)

_FORM = "classes_at_once"  # entry of the state

Batches = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


class GradientCore:
    """Where to move synthetic images so that they teach what real ones teach.

    On a CPU one class follows another: side by side, their grouped convolutions took three to four
    times as long, and a choice by the clock would let a busy machine change the bytes of a set.
    Elsewhere the first step measures both forms and keeps the quicker one. The form is part of the
    state, so that resumed work goes on as it began, and of the notes of the job.

    Args:
        problem: device, and how many images may be sent through a network at once.
        network: one of those that will be asked for, of any weights.
        names: of the parameters whose gradients are matched.
        distance: between the gradients of real and synthetic images; see `distances`.
        real_batch, synthetic_batch: images of each class in a step.
        steps: of the whole run.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        names: Sequence[str],
        distance: Distance,
        *,
        real_batch: int,
        synthetic_batch: int,
        steps: int,
    ) -> None:
        self._names = names
        self._distance = distance
        self._device = problem.device
        self._classes = problem.dataset.classes
        self._synthetic_batch = synthetic_batch
        self._most = max(1, problem.rows_at_once // (real_batch + synthetic_batch))
        self._passes = RealPasses(
            problem, network, images=steps * problem.dataset.classes * real_batch, names=names
        )
        self.classes_at_once = 1 if problem.device.type == "cpu" or self._most == 1 else None

    def gradient(self, network: Network, values: Tensor, batches: Batches) -> tuple[Tensor, Tensor]:
        """The gradient of the distance, and the distance.

        Args:
            network: normalised images → logits; images must not influence each other.
            values: (K, n, C, H, W) what is optimised, of all classes.
            batches: values of some classes and which classes these are → normalised real and
                synthetic images (k, m, C, H, W) as the network sees them, the latter
                differentiable by the values; equal calls give equal images.

        Returns:
            The gradient like `values`, and the distance summed over classes; no history.
        """
        if self.classes_at_once is None:
            self.classes_at_once = quickest(
                [1, self._most],
                lambda form: self._in_groups(network, values, batches, form),
                wait=lambda: torch.cuda.synchronize(self._device),
            )
        return self._in_groups(network, values, batches, self.classes_at_once)

    def demand(self, costs: NetworkCosts, real_batch: int, name: str) -> Demand:
        """What a step takes at its peak.

        Args:
            costs: of the network.
            real_batch: images of each class.
            name: of the parameter that is the number of synthetic ones.
        """
        together = min(self.classes_at_once or self._most, self._classes)
        return Demand(
            [
                Part("", together, 4 * costs.parameters),
                Part("", 1, self._passes.bytes_at_once(costs, real_batch, together)),
                Part("real_batch", real_batch, together * COPIES * costs.image),
                Part(
                    name,
                    self._synthetic_batch,
                    together * (COPIES * costs.image + costs.second + 2 * costs.largest),
                ),
            ]
        )

    def notes(self) -> Mapping[str, str | int]:
        """The form, and how real images are computed."""
        return {
            _FORM: self.classes_at_once or 0,
            "means": self._passes.means.value,
            "means_reason": self._passes.reason,
        }

    def state(self) -> dict[str, Tensor]:
        """The form, once it is chosen."""
        return {} if self.classes_at_once is None else {_FORM: torch.tensor(self.classes_at_once)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        if _FORM in state:
            self.classes_at_once = int(state[_FORM])

    def _in_groups(
        self, network: Network, values: Tensor, batches: Batches, classes_at_once: int
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=values.device)
        gradient = torch.empty_like(values)
        for first in range(0, len(values), classes_at_once):
            group = slice(first, first + classes_at_once)
            labels = torch.arange(len(values), device=values.device)[group]
            leaf = values[group].detach().requires_grad_(True)
            real, synthetic = batches(leaf, group)
            target = self._passes.mean_gradients(network, real, labels)
            ours = class_gradients(network, self._names, synthetic, labels)
            loss = self._distance(ours, target).sum()
            (gradient[group],) = torch.autograd.grad(loss, leaf)
            total += loss.detach()
        return gradient, total


def quickest(
    forms: Sequence[int],
    run: Callable[[int], object],
    *,
    wait: Callable[[], object],
    now: Callable[[], float] = time.perf_counter,
) -> int:
    """The form that takes the least time; the first of equal ones.

    Args:
        forms: to try.
        run: does the work in a form; changes nothing. Called twice for each: the first call of a
            process loads and plans what the others find ready.
        wait: until the device has done what it was told.
        now: seconds.
    """
    seconds = {}
    for form in forms:
        run(form)
        wait()
        began = now()
        run(form)
        wait()
        seconds[form] = now() - began
    _log.info("seconds of a step by classes at once: %s", seconds)
    return min(seconds, key=lambda form: seconds[form])
