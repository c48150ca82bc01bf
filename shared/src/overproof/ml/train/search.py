"""Finds the learning rate of a small set before networks are trained on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from overproof.errors import NonFiniteLoss, OtherSteps
from overproof.ml.models.base import Normalized
from overproof.ml.train.loop import Training
from overproof.ml.train.selection import WatchedTraining

_PREFIX = "now."


class SearchedTraining:
    """One trial a rate, then the training at the best of them; a `Resumable`.

    The trials know nothing of the networks that are trained afterwards: whoever is trained on the
    same set by the same protocol finds the same rate.

    Args:
        rates: to be tried, in this order; of equal ones the first wins.
        epochs: of each trial and of the training.
        trial: a rate → a fresh training of one network.
        judge: that network → right answers on held-out examples.
        make: a rate → the training that is wanted.

    Attributes:
        scores: (rates,) int64, right answers after each trial; -1 for trials that diverged or are
            still to come.
        training: at the best rate, None while there are trials.
    """

    def __init__(
        self,
        rates: Sequence[float],
        *,
        epochs: int,
        trial: Callable[[float], Training],
        judge: Callable[[Normalized], int],
        make: Callable[[float], WatchedTraining],
    ) -> None:
        self._rates = tuple(rates)
        self._epochs = epochs
        self._new_trial = trial
        self._judge = judge
        self._make = make
        self.scores = torch.full((len(self._rates),), -1)
        self._number = -1
        self._trial: Training | None = None
        self.training: WatchedTraining | None = None

    @property
    def total_steps(self) -> int:
        """Epochs of all trials and of the training."""
        return self._epochs * (len(self._rates) + 1)

    @property
    def rate(self) -> float:
        """The rate that did best in the trials so far.

        Raises:
            NonFiniteLoss: every trial diverged.
        """
        best = int(self.scores.argmax())
        if int(self.scores[best]) < 0:
            raise NonFiniteLoss(
                f"training diverged at every learning rate of {', '.join(map(str, self._rates))}; "
                "try lower ones"
            )
        return self._rates[best]

    @property
    def tried(self) -> dict[str, int]:
        """Rate → right answers of its trial on the held-out examples."""
        return {str(rate): int(score) for rate, score in zip(self._rates, self.scores, strict=True)}

    def step(self, index: int) -> Mapping[str, float]:
        """One epoch of a trial or of the training; nothing for a trial that has diverged."""
        number, epoch = divmod(index, self._epochs)
        if number != self._number:
            self._begin(number)
        if self.training is not None:
            return self.training.step(epoch)
        if self._trial is None:
            return {}
        try:
            scalars = self._trial.step(epoch)
            if epoch + 1 == self._epochs:
                self.scores[number] = self._judge(self._trial.networks()[0])
        except NonFiniteLoss:
            self._trial = None
            return {}
        return scalars

    def state(self) -> dict[str, Tensor]:
        """Scores so far, and the state of what is under way."""
        now = self.training or self._trial
        state = {} if now is None else now.state()
        return {
            "search.scores": self.scores.clone(),
            "search.number": torch.tensor(self._number),
        } | {_PREFIX + name: tensor for name, tensor in state.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        try:
            self._load_state(state)
        except OtherSteps:
            self.scores = torch.full_like(self.scores, -1)
            self._number, self._trial, self.training = -1, None, None
            raise

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self.scores = state["search.scores"].clone()
        self._begin(int(state["search.number"]))
        now = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in state.items()
            if name.startswith(_PREFIX)
        }
        if self.training is not None:
            self.training.load_state(now)
        elif now and self._trial is not None:
            self._trial.load_state(now)
        else:
            self._trial = None  # it had diverged

    def _begin(self, number: int) -> None:
        self._number = number
        if number < len(self._rates):
            self._trial = self._new_trial(self._rates[number])
        else:
            self._trial, self.training = None, self._make(self.rate)
