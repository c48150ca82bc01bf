"""What a distilled set is ranked against: each reference is a grid of one line.

References are ordinary groups, so experiments share them: random images of the same size, the set
with hard labels, the whole set with hard labels, and all that without augmentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.protocols import without_augmentation
from overproof.core.ranking import Role
from overproof.core.spec import ExperimentSpec, PluginRef, RankingSpec

_RANDOM = "random"


def is_ranked(method: PluginRef | None, imported: object) -> bool:
    """Whether a training set is ranked: a distilled one, but not the baseline itself."""
    if imported is not None:
        return True
    return method is not None and method.name != _RANDOM


def references(spec: ExperimentSpec) -> dict[Role, ExperimentSpec]:
    """Role → grid whose only training set has it; see there.

    Args:
        spec: resolved, with `ranking`, and narrowed to one method or imported set, one size and
            one network.
    """
    assert spec.ranking is not None
    rivals = _random_sets(spec)
    found = {
        Role.OWN: spec,
        Role.RANDOM: rivals,
        Role.HARD: _unattacked(spec, protocol=spec.ranking.hard),
        Role.WHOLE: _unattacked(
            spec,
            protocol=spec.ranking.whole,
            methods=(),
            imported=(),
            images_per_class=(),
            whole_set=True,
        ),
    }
    if spec.ranking.augmentation:
        plain = without_augmentation(spec.protocol)
        found |= {
            Role.OWN_PLAIN: _unattacked(spec, protocol=plain),
            Role.RANDOM_PLAIN: rivals.model_copy(update={"protocol": plain}),
        }
    return found


def faults_of(ranking: RankingSpec, protocols: Iterable[PluginRef]) -> list[str]:
    """What makes a ranking impossible.

    Args:
        ranking: its protocols canonical.
        protocols: canonical, of all sets that are ranked.
    """
    faults = [
        f"ranking.{name}: protocol {ref.name} may train towards soft labels that a set brings; "
        "use ddk with labels: hard"
        for name, ref in (("hard", ranking.hard), ("whole", ranking.whole))
        if ref.params.get("labels") != "hard"
    ]
    faults += [
        f"ranking.augmentation: protocol {ref.name} augments nothing; name one that does, or "
        "leave it out"
        for ref in protocols
        if ranking.augmentation and without_augmentation(ref) == ref
    ]
    return faults


def _random_sets(spec: ExperimentSpec) -> ExperimentSpec:
    """Fresh random sets, one for each run of the set that is ranked."""
    seeds, network_seeds = spec.seeds, spec.network_seeds
    if spec.imported or len(seeds) == 1:
        seeds, network_seeds = network_seeds or seeds, ()
    random = DISTILLATION.canonical(PluginRef(name=_RANDOM))
    return _unattacked(
        spec,
        methods=(random,),
        imported=(),
        whole_set=False,
        seeds=seeds,
        network_seeds=network_seeds,
    )


def _unattacked(spec: ExperimentSpec, **over: Any) -> ExperimentSpec:
    return spec.model_copy(update={"attacks": (), **over})
