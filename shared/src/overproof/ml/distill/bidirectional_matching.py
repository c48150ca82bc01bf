"""Bidirectional representative matching (DREAM+): gradients and features of representatives."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.catalog.canvases import BidirectionalParams
from overproof.ml.distill.base import Problem
from overproof.ml.distill.clustering import representatives
from overproof.ml.distill.distances import DISTANCES
from overproof.ml.distill.gradient_core import Batches
from overproof.ml.distill.passes import class_features
from overproof.ml.distill.representative_matching import RepresentativeMatching
from overproof.ml.distill.trainee import Trainee
from overproof.ml.models.base import Network


class BidirectionalMatching(RepresentativeMatching):
    """DREAM that also matches mean features, on networks that have seen the whole set before.

    Args:
        params: see `BidirectionalParams`. Where the smallest class has fewer images than
            `clusters`, as many as it has are drawn of every class.
        problem: see `DistillationMethod`.

    Source: arXiv:2310.15052, sections 3.2 and 3.3; lyq312318224/DREAM, condense_improve.py.
    Differs: the first network is taught before too, where the code goes on with the one that chose
    the first images; no image stands for two centres; as `RepresentativeMatching`.
    """

    params: BidirectionalParams

    def __init__(self, params: BidirectionalParams, problem: Problem) -> None:
        self._nearest = min(params.nearest, params.clusters)
        self._chooses_overall = problem.dataset.name == "tiny-imagenet"
        super().__init__(params, problem)

    def gradient(self, network: Network, values: Tensor, batches: Batches) -> tuple[Tensor, Tensor]:
        """Of both distances; the features of one class after another."""
        gradient, loss = super().gradient(network, values, batches)
        distance = DISTANCES[self.distance_name]
        for label in range(len(values)):
            group = slice(label, label + 1)
            leaf = values[group].detach().requires_grad_(True)
            real, synthetic = batches(leaf, group)
            with torch.no_grad():
                goal = class_features(network, real).mean(dim=1)
            ours = class_features(network, synthetic).mean(dim=1)
            far = distance([ours.unsqueeze(1)], [goal.unsqueeze(1)]).sum()
            (slope,) = torch.autograd.grad(far, leaf)
            gradient[group] += slope
            loss = loss + far.detach()
        return gradient, loss

    def prepare(self, trainee: Trainee, iteration: int) -> None:
        """Show the network as many real images as there are, `pretraining` times over."""
        count = self.params.pretraining * len(self.problem.dataset.train_images)
        self.teach(trainee, count, "pretraining", iteration)

    def _representatives(self, network: Network, count: int, *labels: str | int) -> Tensor:
        if labels[0] != "real":
            return super()._representatives(network, count, *labels)
        network.eval()
        self._normalizer.network = network
        return representatives(
            self._normalizer,
            self._real,
            count // self._nearest,
            rounds=self._rounds,
            seed=self.problem.seed,
            labels=labels,
            rows_at_once=self.problem.rows_at_once,
            each=self._nearest,
            overall=self._chooses_overall,
        )
