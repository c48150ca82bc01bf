"""Attacks by name; the norm is part of the name."""

from __future__ import annotations

from dataclasses import dataclass

from overproof.catalog.autoattack import (
    ApgdParams,
    AutoAttackParams,
    FabParams,
    SquareParams,
    TargetedApgdParams,
    TargetedFabParams,
)
from overproof.catalog.gradient_attacks import (
    BimParams,
    DeepFoolParams,
    FgsmParams,
    JitterParams,
    L2CwParams,
    L2PgdParams,
    LinfCwParams,
    MomentumParams,
    PgdParams,
    VarianceTuningParams,
)
from overproof.catalog.torchattacks_adapter import TorchattacksParams
from overproof.core.registry import PluginInfo, Registry
from overproof.core.threat import Norm

# Tags of iterated attacks, by what they climb.
CROSS_ENTROPY = "cross-entropy"
MARGIN = "margin"


@dataclass(frozen=True, kw_only=True)
class AttackInfo(PluginInfo):
    """An attack with the norm that bounds it."""

    norm: Norm


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
