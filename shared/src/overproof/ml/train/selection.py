"""Which weights of a training are kept: the last ones, or the best of some epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from overproof.catalog.protocols import Selection
from overproof.ml.models.base import Normalized
from overproof.ml.seeding import generator
from overproof.ml.train.evaluation import predictions_of
from overproof.ml.train.loop import Training


@dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W), uint8 or float32 pixels, with their classes (N,) int64."""

    images: Tensor
    labels: Tensor

    def correct(self, model: Normalized, device: torch.device, rows_at_once: int) -> int:
        """How many of them `model` classifies rightly.

        Raises:
            NonFiniteLoss: its logits are not finite.
        """
        predictions = predictions_of(model, self.images, device=device, rows_at_once=rows_at_once)
        return int((predictions == self.labels).sum())


def hold_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Split examples into those to train on and those to choose by.

    At least one of every class is held out, and one kept: of a class with a single example both
    are the same one. The split depends on the labels alone.

    Args:
        labels: (N,) int64.
        share: of every class that is held out, above 0 and below 1.

    Returns:
        Numbers of the kept and of the held-out examples, int64, ascending.
    """
    kept, held = [], []
    for label in sorted(set(labels.tolist())):
        members = torch.nonzero(labels == label).squeeze(1)
        order = members[torch.randperm(len(members), generator=generator(0, "held-out", label))]
        count = min(max(1, round(share * len(order))), max(1, len(order) - 1))
        held.append(order[:count])
        kept.append(order[count:] if len(order) > 1 else order)
    return torch.cat(kept).sort().values, torch.cat(held).sort().values


class WatchedTraining:
    """A training that is looked at after some epochs; a `Resumable` with one step an epoch.

    The accuracy on the test set is written down at every look, since published numbers are now
    the last and now the best of them. It decides which weights are kept only by `paper`.

    Args:
        training: fresh.
        selection: `last`; `validation` or `paper` for the look with the highest accuracy on the
            held-out or on the test examples, the earlier one of equals.
        looks: how many, spread evenly; the last is after the last epoch.
        test: examples that are measured.
        validation: examples to choose by; needed for `validation`.
        device: where to compute.
        rows_at_once: images in one forward pass.

    Attributes:
        epochs: after which it is looked, counted from 0.
        correct: (M, looks) int64, right answers on the test set; -1 for looks still to come.
        chosen: (M,) int64, number of the look whose weights are kept.
    """

    def __init__(
        self,
        training: Training,
        *,
        selection: Selection,
        looks: int,
        test: Examples,
        validation: Examples | None = None,
        device: torch.device,
        rows_at_once: int,
    ) -> None:
        self._training = training
        self._selection = selection
        self._test = test
        if selection == "validation":
            if validation is None:
                raise ValueError("choosing by validation needs held-out examples")
            self._judge = validation
        else:
            self._judge = test
        self._device = device
        self._rows_at_once = rows_at_once
        total = training.total_steps
        self.epochs = tuple(sorted({-(-total * k // looks) - 1 for k in range(1, looks + 1)}))
        networks = len(training.networks())
        self.correct = torch.full((networks, len(self.epochs)), -1)
        self.chosen = torch.full((networks,), len(self.epochs) - 1)
        self._highest = torch.full((networks,), -1)
        self._kept: dict[int, dict[str, Tensor]] = {}

    @property
    def total_steps(self) -> int:
        """Number of epochs."""
        return self._training.total_steps

    @property
    def losses(self) -> tuple[float, ...]:
        """Of each network in the last epoch whose loss was read."""
        return self._training.losses

    def step(self, index: int) -> Mapping[str, float]:
        """Train for epoch `index`, and look if it is time."""
        scalars = self._training.step(index)
        if index in self.epochs:
            self._look(self.epochs.index(index))
        return scalars

    def networks(self) -> list[Normalized]:
        """The networks with the weights that were chosen, once all epochs are done."""
        networks = self._training.networks()
        for i, weights in self._kept.items():
            networks[i].load_state_dict(weights)
        return networks

    def state(self) -> dict[str, Tensor]:
        """That of the training, what was seen, and the weights that are kept."""
        kept = {
            f"kept.{i}.{name}": tensor.clone()
            for i, weights in self._kept.items()
            for name, tensor in weights.items()
        }
        seen = {"correct": self.correct, "chosen": self.chosen, "highest": self._highest}
        return (
            self._training.state()
            | kept
            | {f"looks.{name}": tensor.clone() for name, tensor in seen.items()}
        )

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        self._training.load_state(state)
        self.correct = state["looks.correct"].clone()
        self.chosen = state["looks.chosen"].clone()
        self._highest = state["looks.highest"].clone()
        self._kept = {}
        for entry, tensor in state.items():
            if entry.startswith("kept."):
                _, i, name = entry.split(".", 2)
                self._kept.setdefault(int(i), {})[name] = tensor

    def _look(self, number: int) -> None:
        for i, model in enumerate(self._training.networks()):
            correct = self._test.correct(model, self._device, self._rows_at_once)
            self.correct[i, number] = correct
            if self._selection == "last":
                continue
            score = correct
            if self._judge is not self._test:
                score = self._judge.correct(model, self._device, self._rows_at_once)
            if score > int(self._highest[i]):
                self._highest[i], self.chosen[i] = score, number
                weights = model.state_dict()
                self._kept[i] = {name: tensor.clone() for name, tensor in weights.items()}
