"""k-means: the images nearest to the centres of clusters of their class."""

from __future__ import annotations

from torch import Tensor

from overproof.catalog.distillation import KMeansParams
from overproof.ml.distill.clustering import centres_of, nearest_rows
from overproof.ml.distill.feature_selection import FeatureSelection
from overproof.ml.seeding import generator


class KMeans(FeatureSelection[KMeansParams]):
    """Split the features of each class into as many clusters as images are wanted.

    Source: arXiv:2207.09639, section 3; justincui03/dc_benchmark. Differs: no image is taken
    twice.
    """

    def choose(self, features: Tensor, label: int) -> Tensor:
        """The image nearest to each centre."""
        points, counts = features.unsqueeze(0), [len(features)]
        centres = centres_of(
            points,
            counts,
            self.problem.images_per_class,
            rounds=self.params.rounds,
            generator=generator(self.problem.seed, "clusters", label),
        )
        return nearest_rows(points, counts, centres)[0]
