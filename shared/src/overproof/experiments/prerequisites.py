"""Units that distilled sets need before them, shared by all sets that ask for the same."""

from __future__ import annotations

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.models import MODELS
from overproof.catalog.trajectories import ExpertParams
from overproof.core.spec import DatasetSpec, ExpertsBody, PluginRef, Unit
from overproof.experiments.units import make_unit


def experts_of(source: DatasetSpec, method: PluginRef, network: PluginRef | None) -> list[Unit]:
    """The experts whose trajectories `method` follows; shared by all sets that ask for the same.

    They know nothing of the method, the images per class and the seed of the set, nor of a test
    set.
    """
    params = DISTILLATION.resolve(method)
    if not isinstance(params, ExpertParams) or network is None:
        return []
    return [
        make_unit(
            "experts",
            ExpertsBody(
                dataset=source.model_copy(update={"test_subset_per_class": None}),
                network=network,
                epochs=params.expert_epochs,
                learning_rate=params.expert_learning_rate,
                momentum=params.expert_momentum,
                weight_decay=params.expert_weight_decay,
                batch_size=params.expert_batch,
                strategy=params.strategy,
                seed=seed,
            ),
            plugins=[(MODELS, network)],
        )
        for seed in range(params.experts)
    ]
