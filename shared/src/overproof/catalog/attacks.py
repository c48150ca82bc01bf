"""Attacks by name; the norm is part of the name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from overproof.catalog.autoattack import (
    ApgdParams,
    AutoAttackParams,
    FabParams,
    SquareParams,
    TargetedApgdParams,
    TargetedFabParams,
)
from overproof.core.registry import Params, PluginInfo, Registry
from overproof.core.threat import Epsilon, Norm

# Tags of iterated attacks, by what they climb.
CROSS_ENTROPY = "cross-entropy"
MARGIN = "margin"

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


class L2PgdParams(Params):
    """Iterated steps from a random start in the L2 ball; `step_size` is the length of a step."""

    steps: Steps = 10
    step_size: Epsilon = "0.2"
    random_start: bool = True
    restarts: Annotated[int, Field(ge=1, le=100)] = 1


class LinfCwParams(Params):
    """Iterated steps on the margin, until a wrong class leads by `confidence`."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    confidence: Annotated[float, Field(ge=0)] = 50.0
    random_start: bool = True


class MomentumParams(Params):
    """Iterated steps along gradients summed up, the old ones weighted down by `decay`."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    decay: Annotated[float, Field(ge=0, le=10)] = 1.0


class VarianceTuningParams(MomentumParams):
    """As with momentum; `neighbours` are drawn within `spread` budgets of the iterate."""

    neighbours: Annotated[int, Field(ge=1, le=1000)] = 5
    spread: Annotated[float, Field(gt=0, le=10)] = 1.5


class JitterParams(Params):
    """Iterated steps; `scale` sharpens the probabilities, `std` is the noise put on them."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    scale: Annotated[float, Field(gt=0)] = 10.0
    std: Annotated[float, Field(ge=0)] = 0.1
    random_start: bool = True


class L2CwParams(Params):
    """Adam on distance plus `constant` times the margin; further `search_steps` tune it."""

    steps: Steps = 50
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    constant: Annotated[float, Field(gt=0)] = 1.0
    search_steps: Annotated[int, Field(ge=1, le=50)] = 1


class DeepFoolParams(Params):
    """At most `steps` linearisations; the sum of the steps is stretched by 1 + `overshoot`."""

    steps: Steps = 50
    overshoot: Annotated[float, Field(ge=0, le=1)] = 0.02


class TorchattacksParams(Params):
    """An attack of the package torchattacks by its class name; its own parameters stand beside it.

    The budget, the seed and the number of classes are those of the cell.
    """

    # Flat, as `{attack: PGD, alpha: 0.01, steps: 20}`; torchattacks says which there are.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, bool | int | float | str] = Field(init=False)

    attack: str

    @property
    def settings(self) -> dict[str, bool | int | float | str]:
        """Parameters of the attack itself."""
        return dict(self.__pydantic_extra__)


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
        tags=frozenset({CROSS_ENTROPY}),
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
        tags=frozenset({CROSS_ENTROPY}),
        aliases=("pgd",),
    ),
    AttackInfo(
        name="pgd-l2",
        target="overproof.ml.attack.pgd:L2ProjectedGradientDescent",
        params=L2PgdParams,
        summary="iterated gradient steps from a random start, in L2",
        source="Madry et al., arXiv:1706.06083; Harry24k/adversarial-attacks-pytorch, pgdl2.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({CROSS_ENTROPY}),
    ),
    AttackInfo(
        name="cw-linf",
        target="overproof.ml.attack.cw:LinfCarliniWagner",
        params=LinfCwParams,
        summary="iterated signed steps on the margin; the CW of DD-RobustBench",
        source="Carlini & Wagner, arXiv:1608.04644; DD-RobustBench, attack_utils.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({MARGIN}),
        aliases=("cw",),
    ),
    AttackInfo(
        name="cw-l2",
        target="overproof.ml.attack.cw:L2CarliniWagner",
        params=L2CwParams,
        summary="nearest misclassified image by Adam on distance and margin",
        source="Carlini & Wagner, arXiv:1608.04644; Harry24k/adversarial-attacks-pytorch, cw.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
    ),
    AttackInfo(
        name="mi-fgsm-linf",
        target="overproof.ml.attack.momentum:LinfMomentumIterative",
        params=MomentumParams,
        summary="iterated signed steps with momentum",
        source="Dong et al., arXiv:1710.06081; Harry24k/adversarial-attacks-pytorch, mifgsm.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({CROSS_ENTROPY}),
        aliases=("mi-fgsm", "mifgsm"),
    ),
    AttackInfo(
        name="ni-fgsm-linf",
        target="overproof.ml.attack.momentum:LinfNesterovIterative",
        params=MomentumParams,
        summary="as MI-FGSM, with gradients taken ahead along the momentum",
        source="Lin et al., arXiv:1908.06281; Harry24k/adversarial-attacks-pytorch, nifgsm.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({CROSS_ENTROPY}),
        aliases=("ni-fgsm", "nifgsm"),
    ),
    AttackInfo(
        name="vmi-fgsm-linf",
        target="overproof.ml.attack.momentum:LinfVarianceTuning",
        params=VarianceTuningParams,
        summary="as MI-FGSM, with gradients corrected by their variance nearby",
        source="Wang & He, arXiv:2103.15571; Harry24k/adversarial-attacks-pytorch, vmifgsm.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({CROSS_ENTROPY}),
        aliases=("vmi-fgsm", "vmifgsm"),
    ),
    AttackInfo(
        name="jitter-linf",
        target="overproof.ml.attack.jitter:LinfJitter",
        params=JitterParams,
        summary="iterated signed steps on noisy, rescaled probabilities",
        source="Schwinn et al., arXiv:2105.10304; Harry24k/adversarial-attacks-pytorch, jitter.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("jitter",),
    ),
    AttackInfo(
        name="deepfool-l2",
        target="overproof.ml.attack.deepfool:L2DeepFool",
        params=DeepFoolParams,
        summary="shortest steps to the nearest linearised boundary",
        source=(
            "Moosavi-Dezfooli et al., arXiv:1511.04599; "
            "Harry24k/adversarial-attacks-pytorch, deepfool.py"
        ),
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
        aliases=("deepfool",),
    ),
    AttackInfo(
        name="apgd-ce-linf",
        target="overproof.ml.attack.apgd:LinfApgd",
        params=ApgdParams,
        summary="steps with momentum that halve when progress stops, on the cross entropy",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({CROSS_ENTROPY}),
        aliases=("apgd", "apgd-ce"),
    ),
    AttackInfo(
        name="apgd-dlr-linf",
        target="overproof.ml.attack.apgd:LinfDlrApgd",
        params=ApgdParams,
        summary="APGD on the difference of logits ratio; three classes or more",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({MARGIN}),
        aliases=("apgd-dlr",),
    ),
    AttackInfo(
        name="apgd-t-linf",
        target="overproof.ml.attack.apgd:LinfTargetedApgd",
        params=TargetedApgdParams,
        summary="APGD on the targeted DLR, one wrong class after another; four classes or more",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({MARGIN}),
        aliases=("apgd-t",),
    ),
    AttackInfo(
        name="apgd-ce-l2",
        target="overproof.ml.attack.apgd:L2Apgd",
        params=ApgdParams,
        summary="APGD on the cross entropy in L2",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({CROSS_ENTROPY}),
    ),
    AttackInfo(
        name="apgd-dlr-l2",
        target="overproof.ml.attack.apgd:L2DlrApgd",
        params=ApgdParams,
        summary="APGD on the difference of logits ratio in L2",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
    ),
    AttackInfo(
        name="apgd-t-l2",
        target="overproof.ml.attack.apgd:L2TargetedApgd",
        params=TargetedApgdParams,
        summary="APGD on the targeted DLR in L2",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autopgd_base.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
    ),
    AttackInfo(
        name="fab-linf",
        target="overproof.ml.attack.fab:LinfFab",
        params=FabParams,
        summary="steps to the nearest boundary; looks for the smallest perturbation",
        source="Croce and Hein, arXiv:1907.02044; fra31/auto-attack, fab_base.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({MARGIN}),
        aliases=("fab",),
    ),
    AttackInfo(
        name="fab-t-linf",
        target="overproof.ml.attack.fab:LinfTargetedFab",
        params=TargetedFabParams,
        summary="FAB to the boundary of one wrong class after another",
        source="Croce and Hein, arXiv:1907.02044; fra31/auto-attack, fab_base.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        tags=frozenset({MARGIN}),
        aliases=("fab-t",),
    ),
    AttackInfo(
        name="fab-l2",
        target="overproof.ml.attack.fab:L2Fab",
        params=FabParams,
        summary="FAB in L2",
        source="Croce and Hein, arXiv:1907.02044; fra31/auto-attack, fab_base.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
    ),
    AttackInfo(
        name="fab-t-l2",
        target="overproof.ml.attack.fab:L2TargetedFab",
        params=TargetedFabParams,
        summary="targeted FAB in L2",
        source="Croce and Hein, arXiv:1907.02044; fra31/auto-attack, fab_base.py",
        needs="overproof[ml]",
        norm=Norm.L2,
        tags=frozenset({MARGIN}),
    ),
    AttackInfo(
        name="square-linf",
        target="overproof.ml.attack.square:LinfSquare",
        params=SquareParams,
        summary="random search with squares, without gradients",
        source="Andriushchenko et al., arXiv:1912.00049; fra31/auto-attack, square.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("square",),
    ),
    AttackInfo(
        name="square-l2",
        target="overproof.ml.attack.square_l2:L2Square",
        params=SquareParams,
        summary="random search with bumps that take the budget of other places",
        source="Andriushchenko et al., arXiv:1912.00049; fra31/auto-attack, square.py",
        needs="overproof[ml]",
        norm=Norm.L2,
    ),
    AttackInfo(
        name="autoattack-linf",
        target="overproof.ml.attack.autoattack:LinfAutoAttack",
        params=AutoAttackParams,
        summary="APGD, FAB and Square, each on what the ones before left",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autoattack.py",
        needs="overproof[ml]",
        norm=Norm.LINF,
        aliases=("autoattack", "aa"),
    ),
    AttackInfo(
        name="autoattack-l2",
        target="overproof.ml.attack.autoattack:L2AutoAttack",
        params=AutoAttackParams,
        summary="APGD, FAB and Square in L2, each on what the ones before left",
        source="Croce and Hein, arXiv:2003.01690; fra31/auto-attack, autoattack.py",
        needs="overproof[ml]",
        norm=Norm.L2,
    ),
    AttackInfo(
        name="torchattacks-linf",
        target="overproof.ml.attack.adapter:LinfTorchattacks",
        params=TorchattacksParams,
        summary="any L∞ attack of torchattacks by name, behind the same judge",
        source="Kim, arXiv:2010.01950; Harry24k/adversarial-attacks-pytorch",
        needs="overproof[ml,oracle]",
        norm=Norm.LINF,
        aliases=("torchattacks",),
    ),
    AttackInfo(
        name="torchattacks-l2",
        target="overproof.ml.attack.adapter:L2Torchattacks",
        params=TorchattacksParams,
        summary="any L2 attack of torchattacks by name, behind the same judge",
        source="Kim, arXiv:2010.01950; Harry24k/adversarial-attacks-pytorch",
        needs="overproof[ml,oracle]",
        norm=Norm.L2,
    ),
):
    ATTACKS.add(_info)
