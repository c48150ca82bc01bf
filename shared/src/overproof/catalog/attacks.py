"""Attacks by name; the norm is part of the name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.threat import Epsilon, Norm

Steps = Annotated[int, Field(ge=1, le=100_000)]


@dataclass(frozen=True, kw_only=True)
class AttackInfo(PluginInfo):
    """An attack with the norm that bounds it."""

    norm: Norm


class FgsmParams(Params):
    """One step of the size of the budget."""


class BimParams(Params):
    """Iterated steps from the image itself."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"


class PgdParams(Params):
    """Iterated steps from a random start in the ball."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    random_start: bool = True
    restarts: Annotated[int, Field(ge=1, le=100)] = 1


ATTACKS: Registry = Registry("attacks")


def attack(name: str) -> AttackInfo:
    """The attack called `name`.

    Raises:
        UnknownPlugin: there is none.
    """
    info = ATTACKS.get(name)
    assert isinstance(info, AttackInfo)
    return info


for _info in (
    AttackInfo(
        name="fgsm-linf",
        target="overproof.ml.attack.fgsm:LinfFastGradientSign",
        params=FgsmParams,
        summary="one signed gradient step",
        source="Goodfellow et al., arXiv:1412.6572; Harry24k/adversarial-attacks-pytorch, fgsm.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("fgsm",),
    ),
    AttackInfo(
        name="bim-linf",
        target="overproof.ml.attack.pgd:LinfBasicIterative",
        params=BimParams,
        summary="iterated signed gradient steps from the image",
        source="Kurakin et al., arXiv:1607.02533; Harry24k/adversarial-attacks-pytorch, bim.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("bim",),
    ),
    AttackInfo(
        name="pgd-linf",
        target="overproof.ml.attack.pgd:LinfProjectedGradientDescent",
        params=PgdParams,
        summary="iterated signed gradient steps from a random start",
        source="Madry et al., arXiv:1706.06083; Harry24k/adversarial-attacks-pytorch, pgd.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("pgd",),
    ),
):
    ATTACKS.add(_info)
