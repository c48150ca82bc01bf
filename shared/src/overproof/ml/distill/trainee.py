"""A network that learns between the steps of a method, with the momentum it has gathered."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from overproof.ml.models.base import Network


class Trainee:
    """A network under SGD.

    Args:
        network: on the device; trained in place.
        learning_rate, momentum, weight_decay: of SGD.

    Attributes:
        network: with its present weights.
    """

    def __init__(
        self, network: Network, *, learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        self.network = network
        self._optimizer = torch.optim.SGD(
            network.parameters(), lr=learning_rate, momentum=momentum, weight_decay=weight_decay
        )

    def learn(self, x: Tensor, targets: Tensor) -> Tensor:
        """One step on the mean cross entropy, in training mode.

        Args:
            x: (B, C, H, W) normalised images.
            targets: (B,) int64 classes, or (B, K) probabilities.

        Returns:
            (B, K) logits before the step, no history.
        """
        self.network.train()
        logits: Tensor = self.network(x)
        self._optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(logits, targets))
        self._optimizer.step()
        return logits.detach()

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Weights, buffers and momentum under names that begin with `prefix`; copies."""
        state = {
            f"{prefix}weights.{name}": tensor.clone()
            for name, tensor in self.network.state_dict().items()
        }
        for name, parameter in self.network.named_parameters():
            buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                state[f"{prefix}momentum.{name}"] = buffer.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Take up what `state` returned."""
        names = self.network.state_dict().keys()
        self.network.load_state_dict({name: state[f"{prefix}weights.{name}"] for name in names})
        self._optimizer.state.clear()
        for name, parameter in self.network.named_parameters():
            buffer = state.get(f"{prefix}momentum.{name}")
            if buffer is not None:
                self._optimizer.state[parameter]["momentum_buffer"] = buffer.to(
                    parameter.device, copy=True
                )
