"""Networks of one architecture that take steps side by side, each on its own batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.optim import Optimizer

from overproof.errors import OtherSteps
from overproof.ml.models.base import Network
from overproof.ml.train.losses import Loss
from overproof.ml.train.recipe import Recipe

_WEIGHTS = "weights."  # how names of weights begin in a state


class Fleet(ABC):
    """M networks in training mode, with the state of each one's optimizer.

    What a network becomes depends on its own batches alone, never on its neighbours.

    Args:
        networks: on the device where they are to be trained; taken over and changed in place.
        recipe: loss, optimizer, momentum and weight decay.
    """

    def __init__(self, networks: Sequence[Network], recipe: Recipe) -> None:
        self._networks = list(networks)
        self._recipe = recipe
        for network in self._networks:
            network.train()

    @abstractmethod
    def step(self, batches: Sequence[tuple[Tensor, Tensor]], learning_rate: float) -> Tensor:
        """One step for each network.

        Args:
            batches: for each network (B, C, H, W) normalised images and targets as the loss of
                the recipe takes them; one B.
            learning_rate: of this step.

        Returns:
            (M,) mean loss before the step, on the device, no history.
        """

    @abstractmethod
    def forget_momentum(self) -> None:
        """Start momentum anew, as a new optimizer does."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Weights, buffers and what optimizers remember; copies."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned.

        Raises:
            OtherSteps: of another kind of fleet, as on another kind of device.
        """

    @abstractmethod
    def networks(self) -> list[Network]:
        """The networks with their present weights."""


class LoopFleet(Fleet):
    """One network after another: the means of a CPU, and of networks with batch statistics.

    Args:
        networks, recipe: see `Fleet`.
        compiled: compile the loss. One compilation serves all networks and a second one the last,
            smaller batch; gradients then differ from the eager ones by rounding.
    """

    def __init__(
        self, networks: Sequence[Network], recipe: Recipe, *, compiled: bool = False
    ) -> None:
        super().__init__(networks, recipe)
        self._optimizers = [
            _optimizer(network.named_parameters(), recipe, network) for network in self._networks
        ]
        make = _compiled_loss if compiled else _eager_loss
        self._loss = make(self._networks[0], recipe.loss)

    def step(self, batches: Sequence[tuple[Tensor, Tensor]], learning_rate: float) -> Tensor:
        """One step for each network."""
        losses = []
        for network, optimizer, (x, y) in zip(
            self._networks, self._optimizers, batches, strict=True
        ):
            loss = self._loss(network, x, y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            _set_learning_rate(optimizer, learning_rate)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def forget_momentum(self) -> None:
        """Start momentum anew."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def state(self) -> dict[str, Tensor]:
        """Entries `<network>.weights.<name>` and `<network>.momentum.<name>` or of AdamW."""
        state = {}
        for i, (network, optimizer) in enumerate(
            zip(self._networks, self._optimizers, strict=True)
        ):
            for name, tensor in network.state_dict().items():
                state[f"{i}.weights.{name}"] = tensor.clone()
            state.update(_memory_of(optimizer, network.named_parameters(), f"{i}."))
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        _check_kind(state, f"0.{_WEIGHTS}")
        for i, (network, optimizer) in enumerate(
            zip(self._networks, self._optimizers, strict=True)
        ):
            names = network.state_dict().keys()
            network.load_state_dict({name: state[f"{i}.weights.{name}"] for name in names})
            _load_memory(optimizer, network.named_parameters(), state, f"{i}.")

    def networks(self) -> list[Network]:
        """The networks with their present weights."""
        return self._networks


class StackedFleet(Fleet):
    """All networks in one batched call: the means of a GPU, where small steps wait for launches.

    For networks without batch statistics, whose buffers never change.
    """

    def __init__(self, networks: Sequence[Network], recipe: Recipe) -> None:
        super().__init__(networks, recipe)
        parameters, self._buffers = stack_module_state(self._networks)
        self._parameters = {
            name: tensor.detach().requires_grad_(True) for name, tensor in parameters.items()
        }
        template = self._networks[0]
        self._optimizer = _optimizer(self._parameters.items(), recipe, template)

        def loss(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
            return recipe.loss(functional_call(template, (parameters, buffers), (x,)), y)

        self._gradients = vmap(grad_and_value(loss))

    def step(self, batches: Sequence[tuple[Tensor, Tensor]], learning_rate: float) -> Tensor:
        """One step for each network."""
        x = torch.stack([x for x, _ in batches])
        y = torch.stack([y for _, y in batches])
        detached = {name: tensor.detach() for name, tensor in self._parameters.items()}
        gradients, losses = self._gradients(detached, self._buffers, x, y)
        for name, tensor in self._parameters.items():
            tensor.grad = gradients[name]
        _set_learning_rate(self._optimizer, learning_rate)
        self._optimizer.step()
        stacked: Tensor = losses
        return stacked

    def forget_momentum(self) -> None:
        """Start momentum anew."""
        self._optimizer.state.clear()

    def state(self) -> dict[str, Tensor]:
        """Entries `weights.<name>` and `momentum.<name>` or of AdamW, each of M networks."""
        state = {
            f"weights.{name}": tensor.detach().clone() for name, tensor in self._parameters.items()
        }
        return state | _memory_of(self._optimizer, self._parameters.items(), "")

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        _check_kind(state, _WEIGHTS)
        for name, tensor in self._parameters.items():
            tensor.copy_(state[f"weights.{name}"])
        _load_memory(self._optimizer, self._parameters.items(), state, "")

    @torch.no_grad()
    def networks(self) -> list[Network]:
        """The networks with their present weights."""
        for i, network in enumerate(self._networks):
            for name, parameter in network.named_parameters():
                parameter.copy_(self._parameters[name][i])
        return self._networks


def _check_kind(state: Mapping[str, Tensor], prefix: str) -> None:
    if not any(name.startswith(prefix) for name in state):
        raise OtherSteps("networks trained side by side are not gone on with one by one, or back")


def _eager_loss(_template: nn.Module, loss: Loss) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    return lambda network, x, y: loss(network(x), y)


def _compiled_loss(
    template: nn.Module, loss: Loss
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    # Parameters are arguments of the compiled function: as attributes of their module they would
    # be guarded, and each network would be compiled anew until the recompile limit.
    def of(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(template, dict(parameters), (x,)), y)

    compiled = torch.compile(of, dynamic=False)
    return lambda network, x, y: compiled(dict(network.named_parameters()), x, y)


def _optimizer(named: Any, recipe: Recipe, network: nn.Module) -> Optimizer:
    """Of tensors by the names that they have in `network`, where they may lack a dimension."""
    decayed = {
        name
        for name, parameter in network.named_parameters()
        if recipe.decays_all or parameter.ndim > 1
    }
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, tensor in named:
        groups[0 if name in decayed else 1]["params"].append(tensor)
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )


def _set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


# What optimizers keep of each parameter, and what it is called in a state.
_MEMORY = {
    "momentum_buffer": "momentum",
    "exp_avg": "first_moment",
    "exp_avg_sq": "second_moment",
    "step": "step",
}


def _memory_of(optimizer: Optimizer, named: Any, prefix: str) -> dict[str, Tensor]:
    # Absent before the first step and after a reset; zeros mean the same, bit for bit.
    return {
        f"{prefix}{called}.{name}": buffer.clone()
        for name, parameter in named
        for key, called in _MEMORY.items()
        if (buffer := optimizer.state.get(parameter, {}).get(key)) is not None
    }


def _load_memory(
    optimizer: Optimizer, named: Any, state: Mapping[str, Tensor], prefix: str
) -> None:
    optimizer.state.clear()
    for name, parameter in named:
        for key, called in _MEMORY.items():
            if (kept := state.get(f"{prefix}{called}.{name}")) is not None:
                # AdamW counts its steps on the CPU wherever the parameters are.
                where = kept.device if key == "step" else parameter.device
                optimizer.state[parameter][key] = kept.to(where, copy=True)
