"""Distillation methods by name."""

from __future__ import annotations

from typing import Literal

from overproof.catalog.canvases import (
    BidirectionalParams,
    DistanceName,
    ImprovedMatchingParams,
    ParameterizationParams,
    RepresentativeParams,
)
from overproof.catalog.diffusion import DiffusionParams
from overproof.catalog.fields import Count, Fraction, Positive, Strategy
from overproof.catalog.taught import CurriculumParams, InversionParams, PatchParams
from overproof.catalog.trajectories import (
    DifficultyAlignmentParams,
    TrajectoryParams,
    TruncatedTrajectoryParams,
)
from overproof.core.registry import Params, PluginInfo, Registry

# Tag of methods that look at no network: none enters the ids of their sets.
NETWORK_FREE = "network-free"
# Tags of methods that ask a teacher, and that need one with batch statistics.
ASKS_TEACHER = "asks-teacher"
BATCH_STATISTICS = "batch-statistics"
# Tag of the method that makes nothing: networks are trained on the data set itself.
WHOLE = "whole"


class RandomParams(Params):
    """No choice to make."""


class WholeSetParams(Params):
    """No choice to make."""


class FeatureParams(Params):
    """The network whose features are used is trained on the whole set first."""

    epochs: Count = 20
    batch_size: Count = 256
    learning_rate: Positive = 0.01


class HerdingParams(FeatureParams):
    """As all selections by features."""


class KCenterParams(FeatureParams):
    """`first`: the image nearest to the class mean, or one drawn at random."""

    first: Literal["mean", "random"] = "mean"


class KMeansParams(FeatureParams):
    """`rounds`: of Lloyd's algorithm."""

    rounds: Count = 20


class DistributionMatchingParams(Params):
    """Published: 20,000 iterations, 256 real images a class; learning rates in `feature_rate`."""

    iterations: Count = 20_000
    real_batch: Count = 256
    learning_rate: Positive | None = None
    momentum: Fraction = 0.5
    init: Literal["real", "noise"] = "real"
    strategy: Strategy = "auto"


def feature_rate(dataset: str, images_per_class: int) -> float:
    """The published learning rate of distribution matching.

    Source: VICO-UoE/DatasetCondensation, README. Differs: other data sets than CIFAR-10 take 1 at
    every size, which is published for CIFAR-100.
    """
    return 10.0 if dataset == "cifar-10" and images_per_class >= 100 else 1.0


class GradientMatchingParams(Params):
    """Published: 1,000 iterations; the loops by images per class where they are None.

    `outer_loop` and `inner_loop` None: 1,1 for 1 image per class, 10,50 for 10, 50,10 for 50, and
    n, round(500 / n) for others.
    """

    iterations: Count = 1_000
    outer_loop: Count | None = None
    inner_loop: Count | None = None
    real_batch: Count = 256
    learning_rate: Positive = 0.1
    momentum: Fraction = 0.5
    network_learning_rate: Positive = 0.01
    network_batch: Count = 256
    distance: DistanceName = "layerwise-cosine"
    init: Literal["real", "noise"] = "noise"
    strategy: Strategy = "none"


class SiameseParams(GradientMatchingParams):
    """Gradient matching under one augmentation for real and synthetic images."""

    init: Literal["real", "noise"] = "real"
    strategy: Strategy = "auto"


DISTILLATION: Registry = Registry("distillation")

for _info in (
    PluginInfo(
        name="random",
        target="overproof.ml.distill.random_selection:RandomSelection",
        params=RandomParams,
        summary="training images drawn at random, without replacement",
        source="baseline of all works",
        needs="overproof[ml]",
        tags=frozenset({"selection", NETWORK_FREE}),
    ),
    PluginInfo(
        name="whole-set",
        target="overproof.ml.distill.whole_set:WholeSet",
        params=WholeSetParams,
        summary="all training images: the reference that nothing small is expected to reach",
        source="upper reference of all works",
        needs="overproof[ml]",
        tags=frozenset({WHOLE, NETWORK_FREE}),
        aliases=("whole",),
    ),
    PluginInfo(
        name="herding",
        target="overproof.ml.distill.herding:Herding",
        params=HerdingParams,
        summary="training images whose running mean of features follows the class mean",
        source="Welling 2009; Rebuffi et al. 2017 (iCaRL)",
        needs="overproof[ml]",
        tags=frozenset({"selection"}),
    ),
    PluginInfo(
        name="k-center",
        target="overproof.ml.distill.k_center:KCenter",
        params=KCenterParams,
        summary="training images that leave none of their class far from all of them",
        source="Gonzalez 1985; Sener & Savarese, arXiv:1708.00489",
        needs="overproof[ml]",
        tags=frozenset({"selection"}),
    ),
    PluginInfo(
        name="k-means",
        target="overproof.ml.distill.k_means:KMeans",
        params=KMeansParams,
        summary="training images nearest to the centres of clusters of their class",
        source="Cui et al., arXiv:2207.09639 (k-means on embeddings); justincui03/dc_benchmark",
        needs="overproof[ml]",
        tags=frozenset({"selection"}),
    ),
    PluginInfo(
        name="distribution-matching",
        target="overproof.ml.distill.distribution_matching:DistributionMatching",
        params=DistributionMatchingParams,
        summary="match class means of features of random networks",
        source="Zhao & Bilen, arXiv:2110.04181; VICO-UoE/DatasetCondensation, main_DM.py",
        needs="overproof[ml]",
        semantics=2,
        aliases=("dm",),
    ),
    PluginInfo(
        name="gradient-matching",
        target="overproof.ml.distill.gradient_matching:GradientMatching",
        params=GradientMatchingParams,
        summary="match gradients of the loss on real and synthetic images",
        source="Zhao et al., arXiv:2006.05929; VICO-UoE/DatasetCondensation, main.py",
        needs="overproof[ml]",
        semantics=2,
        aliases=("dc",),
    ),
    PluginInfo(
        name="siamese-augmentation",
        target="overproof.ml.distill.gradient_matching:GradientMatching",
        params=SiameseParams,
        summary="gradient matching under one differentiable augmentation for both batches",
        source="Zhao & Bilen, arXiv:2102.08259; VICO-UoE/DatasetCondensation, main.py",
        needs="overproof[ml]",
        semantics=2,
        aliases=("dsa",),
    ),
    PluginInfo(
        name="efficient-parameterization",
        target="overproof.ml.distill.parameterization:EfficientParameterization",
        params=ParameterizationParams,
        summary="gradient matching of canvases that hold several images each",
        source="Kim et al., arXiv:2205.14959; snu-mllab/Efficient-Dataset-Condensation",
        needs="overproof[ml]",
        semantics=2,
        aliases=("idc",),
    ),
    PluginInfo(
        name="representative-matching",
        target="overproof.ml.distill.representative_matching:RepresentativeMatching",
        params=RepresentativeParams,
        summary="IDC with real batches from the centres of clusters",
        source="Liu et al., arXiv:2302.14416; lyq312318224/DREAM, condense.py",
        needs="overproof[ml]",
        semantics=2,
        aliases=("dream",),
    ),
    PluginInfo(
        name="bidirectional-representative-matching",
        target="overproof.ml.distill.bidirectional_matching:BidirectionalMatching",
        params=BidirectionalParams,
        summary="DREAM that matches features too, on networks that were trained before",
        source="Liu et al., arXiv:2310.15052; lyq312318224/DREAM, condense_improve.py",
        needs="overproof[ml]",
        aliases=("dream-plus",),
    ),
    PluginInfo(
        name="improved-distribution-matching",
        target="overproof.ml.distill.improved_matching:ImprovedMatching",
        params=ImprovedMatchingParams,
        summary="match features of canvases under a queue of trained networks",
        source="Zhao et al., arXiv:2307.09742; uitrbn/IDM",
        needs="overproof[ml]",
        semantics=2,
        aliases=("idm",),
    ),
    PluginInfo(
        name="trajectory-matching",
        target="overproof.ml.distill.trajectory_matching:TrajectoryMatching",
        params=TrajectoryParams,
        summary="lead a student along the trajectories of experts, by the exact gradient",
        source="Cazenavette et al., arXiv:2203.11932; GeorgeCazenavette/mtt-distillation",
        needs="overproof[ml]",
        semantics=2,
        aliases=("mtt",),
    ),
    PluginInfo(
        name="tesla",
        target="overproof.ml.distill.trajectory_matching:TrajectoryMatching",
        params=TruncatedTrajectoryParams,
        summary="trajectory matching by a truncated gradient, with soft labels of experts if asked",
        source="Cui et al., arXiv:2211.10586; justincui03/tesla, distill.py",
        needs="overproof[ml]",
        semantics=2,
    ),
    PluginInfo(
        name="difficulty-alignment",
        target="overproof.ml.distill.difficulty_alignment:DifficultyAlignment",
        params=DifficultyAlignmentParams,
        summary="trajectory matching in a range of epochs that fits the size, with learned labels",
        source="Guo et al., arXiv:2310.05773; NUS-HPC-AI-Lab/DATM",
        needs="overproof[ml]",
        aliases=("datm",),
    ),
    PluginInfo(
        name="squeeze-recover-relabel",
        target="overproof.ml.distill.inversion:Inversion",
        params=InversionParams,
        summary="make images of noise that a teacher recognises, with the statistics it knows",
        source="Yin et al., arXiv:2306.13092; VILA-Lab/SRe2L, recover",
        needs="overproof[ml]",
        tags=frozenset({NETWORK_FREE, ASKS_TEACHER, BATCH_STATISTICS}),
        aliases=("sre2l",),
    ),
    PluginInfo(
        name="curriculum-data-augmentation",
        target="overproof.ml.distill.inversion:Inversion",
        params=CurriculumParams,
        summary="SRe2L with crops that become smaller while images are made",
        source="Yin & Shen, arXiv:2311.18838; VILA-Lab/SRe2L, CDA",
        needs="overproof[ml]",
        tags=frozenset({NETWORK_FREE, ASKS_TEACHER, BATCH_STATISTICS}),
        aliases=("cda",),
    ),
    PluginInfo(
        name="realistic-patches",
        target="overproof.ml.distill.patches:RealisticPatches",
        params=PatchParams,
        summary="put together the crops of real images that a teacher is surest of",
        source="Sun et al., arXiv:2312.03526; LINs-lab/RDED, synthesize",
        needs="overproof[ml]",
        tags=frozenset({NETWORK_FREE, ASKS_TEACHER}),
        aliases=("rded",),
    ),
    PluginInfo(
        name="latent-diffusion",
        target="overproof.ml.distill.latent_diffusion:LatentDiffusion",
        params=DiffusionParams,
        summary="images that a diffusion model makes from prototypes in its latent space",
        source="Su et al., arXiv:2407.15138; suduo94/D4M",
        needs="overproof[ml]",
        tags=frozenset({NETWORK_FREE}),
        aliases=("d4m",),
    ),
):
    DISTILLATION.add(_info)
