"""Representative matching (DREAM): IDC with real batches that stand for their whole class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from overproof.catalog.canvases import RepresentativeParams
from overproof.ml.distill.base import Problem
from overproof.ml.distill.clustering import representatives
from overproof.ml.distill.parameterization import EfficientParameterization
from overproof.ml.models.base import Network, Normalized

_NUMBERS = "representatives"  # entry of the state


class RepresentativeMatching(EfficientParameterization):
    """IDC whose real batch of a class are the images nearest to the centres of its clusters.

    Args:
        params: see `RepresentativeParams`. Where the smallest class has fewer images than
            `clusters`, there are as many clusters as it has images.
        problem: see `DistillationMethod`.

    Source: arXiv:2302.14416, algorithm 1; lyq312318224/DREAM, condense.py. Differs: features of
    normalised images, as the network is trained on, not of raw pixels (`variant` paper); no image
    stands for two centres; as `EfficientParameterization`.
    """

    def __init__(self, params: RepresentativeParams, problem: Problem) -> None:
        self._interval = params.interval
        self._clusters = params.clusters
        self._rounds = params.rounds
        self._numbers: Tensor | None = None
        super().__init__(params, problem)

    def initial_numbers(self, count: int) -> Tensor:
        """Representatives by the features of a random network, or random images."""
        if self.params.init == "real":
            return super().initial_numbers(count)
        return self._representatives(self._normalizer.network, count, "initial-images")

    def real_batch(self) -> int:
        """One image for each cluster."""
        return self._clusters

    def real_numbers(self, network: Network, index: int) -> Tensor:
        """Representatives by the network's features, found anew every `interval` steps."""
        turn = index % self.params.outer_loop
        if self._numbers is None or turn % self._interval == 0:
            self._numbers = self._representatives(network, self._real_batch, "real", index)
        return self._numbers

    def state(self) -> dict[str, Tensor]:
        """That of IDC and the present representatives."""
        state = super().state()
        if self._numbers is not None:
            state[_NUMBERS] = self._numbers.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        super().load_state(state)
        numbers = state.get(_NUMBERS)
        self._numbers = None if numbers is None else numbers.cpu()

    def _representatives(self, network: Network, count: int, *labels: str | int) -> Tensor:
        network.eval()
        self._normalizer.network = network
        model = self._normalizer
        if self.params.variant == "paper":
            facts = self.problem.dataset.facts
            plain = replace(facts, mean=(0.0,) * facts.channels, std=(1.0,) * facts.channels)
            model = Normalized(network, plain).to(self.problem.device)
        return representatives(
            model,
            self._real,
            count,
            rounds=self._rounds,
            seed=self.problem.seed,
            labels=labels,
            rows_at_once=self.problem.rows_at_once,
        )
