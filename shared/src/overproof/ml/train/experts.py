"""Trains experts and keeps their parameters after every epoch: the trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from overproof.errors import InvalidSpec, MalformedArtifact
from overproof.ml.models.base import Network, Normalized
from overproof.ml.train.loop import Training
from overproof.ml.train.means import has_batch_statistics

_NAME = "trajectory"


def require_plain_parameters(network: Network) -> None:
    """Make sure that a network is its parameters alone, as trajectories know it.

    Raises:
        InvalidSpec: it has batch statistics, which are no parameters.
    """
    if has_batch_statistics(network):
        raise InvalidSpec(
            ["network: trajectories know no batch statistics; use norm: instance"], "experts"
        )


class ExpertTraining:
    """A training that remembers where its networks were; a `Resumable` with one step an epoch.

    Args:
        training: fresh, of networks without batch statistics.

    Attributes:
        trajectories: (M, epochs + 1, P) float32 on the CPU: the parameters of each network at the
            start and after each epoch, in the order of `parameters()`. Zeros where still to come.

    Raises:
        InvalidSpec: the networks have batch statistics.
    """

    def __init__(self, training: Training) -> None:
        networks = training.networks()
        require_plain_parameters(networks[0].network)
        count = sum(each.numel() for each in networks[0].network.parameters())
        self._training = training
        self._done = 0
        self.trajectories = torch.zeros(len(networks), training.total_steps + 1, count)
        self._keep(networks)

    @property
    def total_steps(self) -> int:
        """Number of epochs."""
        return self._training.total_steps

    @property
    def losses(self) -> tuple[float, ...]:
        """Of each network in the last epoch whose loss was read."""
        return self._training.losses

    def step(self, index: int) -> Mapping[str, float]:
        """Train for epoch `index` and keep the parameters."""
        scalars = self._training.step(index)
        self._done = index + 1
        self._keep(self._training.networks())
        return scalars

    def state(self) -> dict[str, Tensor]:
        """That of the training, and the trajectories so far."""
        return self._training.state() | {_NAME: self.trajectories[:, : self._done + 1].clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._training.load_state(state)
        kept = state[_NAME]
        self._done = kept.shape[1] - 1
        self.trajectories[:, : kept.shape[1]] = kept

    @torch.no_grad()
    def _keep(self, models: Sequence[Normalized]) -> None:
        for i, model in enumerate(models):
            flat = torch.cat([each.flatten() for each in model.network.parameters()])
            self.trajectories[i, self._done] = flat.cpu()


def write_trajectory(trajectory: Tensor, path: Path) -> None:
    """Write (epochs + 1, P) float32 parameters of one expert as safetensors."""
    save_file({_NAME: trajectory.contiguous()}, path)


class Experts:
    """Trajectories in files, of which a snapshot at a time is read by memory map.

    Args:
        paths: what `write_trajectory` wrote, one file an expert.
        parameters: P, of the network that they are snapshots of.
        device: where snapshots go.

    Attributes:
        epochs: the number of epochs after which there are snapshots.

    Raises:
        InvalidSpec: there are no files.
        MalformedArtifact: a file is missing, truncated, no trajectory or one of another network.
    """

    def __init__(self, paths: Sequence[Path], *, parameters: int, device: torch.device) -> None:
        if not paths:
            raise InvalidSpec(["experts: this method follows experts; name some"], "set")
        self._device = device
        self._slices = [_opened(path, parameters) for path in paths]
        self.epochs = min(each.get_shape()[0] for each in self._slices) - 1

    def __len__(self) -> int:
        """Number of experts."""
        return len(self._slices)

    def snapshot(self, expert: int, epoch: int) -> Tensor:
        """(P,) float32 parameters of an expert after `epoch` epochs, on the device."""
        flat: Tensor = self._slices[expert][epoch]
        return flat.to(self._device)


def _opened(path: Path, parameters: int) -> Any:
    try:
        file: Any = safe_open(path, framework="pt")
        opened = file.get_slice(_NAME)
    except (SafetensorError, OSError) as error:
        raise MalformedArtifact(f"{path} is not the trajectory of an expert ({error})") from None
    shape = opened.get_shape()
    if len(shape) != 2 or shape[0] < 2 or shape[1] != parameters or opened.get_dtype() != "F32":
        raise MalformedArtifact(
            f"{path} has {opened.get_dtype()} snapshots {tuple(shape)}; a network of {parameters} "
            "parameters needs (epochs + 1, parameters) F32; train the experts again"
        )
    return opened
