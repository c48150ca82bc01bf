"""PGD in L2, CW, momentum attacks, Jitter and DeepFool against closed forms and other code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overproof.catalog.gradient_attacks import (
    DeepFoolParams,
    JitterParams,
    L2CwParams,
    L2PgdParams,
    LinfCwParams,
    MomentumParams,
    PgdParams,
    VarianceTuningParams,
)
from overproof.ml.attack.ball import l2_distance, project_l2
from overproof.ml.attack.base import Attack
from overproof.ml.attack.cw import L2CarliniWagner, LinfCarliniWagner
from overproof.ml.attack.deepfool import L2DeepFool
from overproof.ml.attack.jitter import LinfJitter
from overproof.ml.attack.momentum import (
    LinfMomentumIterative,
    LinfNesterovIterative,
    LinfVarianceTuning,
)
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.pgd import L2ProjectedGradientDescent, LinfProjectedGradientDescent
from overproof.ml.seeding import generator
from tests.ml.oracles import adversarial
from tests.ml.victims import Scaled, an_attack, digits_victim

EPS = 8 / 255
IDS = torch.arange(12)
SHAPE = (3, 8, 8)


class Linear(nn.Module):
    """Logits W x + b of images of four pixels, three classes."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.tensor([[1.0, -2.0, 0.3, 0.5], [-1.0, 1.0, 0.2, 3.0], [0.5, 0.5, -1.0, -1.0]])
            * scale
        )

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def network() -> nn.Module:
    draws = generator(1, "oracle")
    made = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 64, 5)
    )
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draws) * 0.2
    return made.eval()


def batch() -> tuple[Tensor, Tensor]:
    return uniform_noise(IDS, SHAPE, 2), IDS % 5


def interior(count: int) -> Tensor:
    return uniform_noise(torch.arange(count), (1, 2, 2), 5) * 0.4 + 0.3


# ---- other code with the same draws --------------------------------------------------------------

STEPPED: list[tuple[str, float, dict[str, Any]]] = [
    ("fgsm-linf", EPS, {}),
    ("bim-linf", EPS, {}),
    ("pgd-linf", EPS, {}),
    ("pgd-linf", EPS, {"random_start": False}),
    ("pgd-l2", 0.5, {}),
    ("cw-linf", EPS, {}),
    ("mi-fgsm-linf", EPS, {"decay": 0.9}),
    ("ni-fgsm-linf", EPS, {"decay": 0.9}),
    ("vmi-fgsm-linf", EPS, {"neighbours": 3}),
    # With more steps many pixels lie at the border of the ball, and which of them is farthest, so
    # whose gradient the norm changes, is a matter of rounding.
    ("jitter-linf", EPS, {"steps": 4}),
]


@pytest.mark.parametrize("kind", ["convnet-16", "resnet"])
@pytest.mark.parametrize(("name", "radius", "params"), STEPPED)
def test_images_are_those_of_other_code(
    name: str, radius: float, params: dict[str, Any], kind: str
) -> None:
    net, x, y = digits_victim(kind)
    x, y = x[::5], y[::5]

    theirs = adversarial(name, net, x, y, radius, **params)

    ours = an_attack(name, **params)(net, x, y, radius=radius)
    assert torch.allclose(ours.adversarial, theirs, atol=1e-5)
    assert bool((ours.prediction != y).any())  # so of Jitter, the division by distance took part


@pytest.mark.parametrize("name", ["mi-fgsm-linf", "ni-fgsm-linf", "vmi-fgsm-linf"])
def test_zero_gradients_freeze_samples_as_in_torchattacks_where_that_is_asked_for(
    name: str,
) -> None:
    net, x, y = digits_victim()
    loud, x, y = Scaled(net, 300.0), x[::4], y[::4]
    params: dict[str, Any] = {"step_size": "8/255", "decay": 1.0}

    theirs = adversarial(name, loud, x, y, 32 / 255, **params)

    frozen = an_attack(name, freeze_at_zero_gradient=True, **params)(loud, x, y, radius=32 / 255)
    free = an_attack(name, **params)(loud, x, y, radius=32 / 255)
    assert torch.allclose(frozen.adversarial, theirs, atol=1e-5)
    stuck = (frozen.distance == 0) & (frozen.prediction == y)
    assert bool(stuck.any())
    if name == "vmi-fgsm-linf":  # the gradients of its neighbours move a sample that has none
        assert bool((free.distance[stuck] > 0).any())
        assert int(free.worst.sum()) < int(frozen.worst.sum())


needs_foolbox = pytest.mark.skipif(
    find_spec("foolbox") is None, reason="foolbox is not installed; it is in the group dev"
)


@needs_foolbox
@pytest.mark.parametrize("kind", ["convnet-16", "resnet"])
def test_deepfool_finds_the_images_of_foolbox(kind: str) -> None:
    net, x, y = digits_victim(kind)
    x, y = x[::5], y[::5]

    theirs = adversarial("deepfool-l2", net, x, y, 0.0)

    ours = an_attack("deepfool-l2")(net, x, y, radius=100.0)
    assert torch.allclose(ours.adversarial, theirs, atol=1e-3)
    assert torch.allclose(ours.nearest, l2_distance(theirs, x), rtol=1e-3, atol=1e-4)


@needs_foolbox
@pytest.mark.parametrize("kind", ["convnet-16", "resnet"])
def test_cw_l2_finds_images_as_near_as_those_of_foolbox(kind: str) -> None:
    net, x, y = digits_victim(kind)
    x, y = x[::10], y[::10]
    params: dict[str, Any] = {"steps": 60, "search_steps": 4, "learning_rate": 0.03}

    theirs = adversarial("cw-l2", net, x, y, 0.0, **params)

    ours = an_attack("cw-l2", **params)(net, x, y, radius=100.0)
    assert bool((net(theirs).argmax(dim=1) != y).all())
    assert torch.allclose(ours.nearest, l2_distance(theirs, x), rtol=0.02, atol=1e-3)


def test_variance_after_the_last_step_is_not_computed() -> None:
    x, y = batch()

    attack = LinfVarianceTuning(VarianceTuningParams(steps=6, neighbours=3), seed=4)
    outcome = attack(network(), x, y, radius=EPS)

    # One gradient a step and three neighbours for all but the last; the first one is the clean one.
    assert outcome.backward_passes == 12 * (5 + 3 * 5)


# ---- closed forms ------------------------------------------------------------------------------


def nearest_boundaries(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) L2 distance to the nearest boundary of `Linear`; (B,) whether it is in the box there."""
    weight = Linear().weight.detach()
    logits = x.flatten(1) @ weight.T
    lead = logits.gather(1, y.view(-1, 1)) - logits
    normals = weight[y].unsqueeze(1) - weight
    lengths = normals.norm(dim=2)
    away, nearest = torch.where(lengths > 0, lead / lengths, torch.inf).min(dim=1)
    rows = torch.arange(len(x))
    step = (away / lengths[rows, nearest]).view(-1, 1) * normals[rows, nearest]
    point = x.flatten(1) - 1.03 * step
    return away, ((point >= 0) & (point <= 1)).all(dim=1)


def test_deepfool_goes_exactly_beyond_the_nearest_boundary_of_a_linear_network() -> None:
    x = interior(60)
    y = Linear()(x).argmax(dim=1)

    outcome = L2DeepFool(DeepFoolParams(), seed=0)(Linear(), x, y, radius=2.0)

    away, in_box = nearest_boundaries(x, y)
    assert int(in_box.sum()) > 30
    assert torch.allclose(outcome.nearest[in_box], 1.02 * (away[in_box] + 1e-4), atol=1e-5)
    assert torch.allclose(outcome.distance, outcome.nearest, atol=1e-6)
    assert bool((outcome.prediction != y).all())  # those whose way the box cuts included


def test_cw_l2_comes_near_the_boundary_of_a_linear_network_and_never_undercuts_it() -> None:
    x = interior(40)
    y = Linear()(x).argmax(dim=1)
    params = L2CwParams(steps=150, constant=1.0, search_steps=4)

    outcome = L2CarliniWagner(params, seed=0)(Linear(), x, y, radius=2.0)

    away, in_box = nearest_boundaries(x, y)
    assert bool((outcome.nearest >= away - 1e-5).all())
    assert bool((outcome.nearest <= 1.05 * away + 0.01)[in_box].all())


def test_pgd_l2_lowers_the_margin_of_a_linear_network_by_radius_times_l2_norm() -> None:
    x = interior(30)
    y = Linear()(x).argmax(dim=1)
    two_classes = nn.Sequential(Linear(), _FirstTwo())

    attack = L2ProjectedGradientDescent(L2PgdParams(steps=60, step_size="0.02"), seed=0)
    y = y.clamp(max=1)
    outcome = attack(two_classes, x, y, radius=0.1)

    weight = Linear().weight.detach()
    direction = weight[1 - y] - weight[y]
    moved = ((outcome.adversarial - x).flatten(1) * direction).sum(dim=1)
    assert torch.allclose(moved, 0.1 * direction.norm(dim=1), atol=1e-4)


class _FirstTwo(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits[:, :2]


def test_l2_projection_of_hand_made_cases() -> None:
    x = torch.tensor([[[[0.5, 0.5]]], [[[0.5, 0.5]]], [[[0.1, 0.5]]], [[[0.5, 0.5]]]])
    x_adv = torch.tensor([[[[0.8, 0.9]]], [[[0.53, 0.54]]], [[[-0.5, 0.5]]], [[[0.5, 0.5]]]])

    projected = project_l2(x_adv, x, torch.tensor([0.25, 0.25, 0.25, 0.0]))

    expected = [[[[0.65, 0.7]]], [[[0.53, 0.54]]], [[[0.0, 0.5]]], [[[0.5, 0.5]]]]
    assert torch.allclose(projected, torch.tensor(expected))


def test_l2_projection_keeps_to_the_ball_of_large_images() -> None:
    x = uniform_noise(torch.arange(4), (3, 32, 32), 0)
    radius = torch.tensor([0.01, 0.5, 3.0, 20.0])

    projected = project_l2(3 * uniform_noise(torch.arange(4), (3, 32, 32), 1) - 1, x, radius)

    assert bool((l2_distance(projected, x) <= radius + 1e-6).all())
    assert 0 <= float(projected.min()) <= float(projected.max()) <= 1


# ---- what they promise beyond that ---------------------------------------------------------------

SHORTENED: list[tuple[type[Attack[Any]], Any, float]] = [
    (LinfProjectedGradientDescent, PgdParams, EPS),
    (L2ProjectedGradientDescent, L2PgdParams, 0.3),
    (LinfCarliniWagner, LinfCwParams, EPS),
    (LinfMomentumIterative, MomentumParams, EPS),
    (LinfVarianceTuning, VarianceTuningParams, EPS),
    (LinfJitter, JitterParams, EPS),
]


@pytest.mark.parametrize(
    ("made", "params", "radius"), SHORTENED, ids=lambda value: getattr(value, "__name__", None)
)
def test_ten_steps_tell_what_five_would_have(
    made: type[Attack[Any]], params: Any, radius: float
) -> None:
    x, _ = batch()
    y = network()(x).argmax(dim=1)

    longer = made(params(steps=10), seed=1)(network(), x, y, radius=radius)
    shorter = made(params(steps=5), seed=1)(network(), x, y, radius=radius)

    assert list(longer.reports) == [5]
    assert torch.equal(longer.reports[5].prediction, shorter.prediction)
    assert torch.equal(longer.reports[5].worst, shorter.worst)
    assert shorter.reports == {}


@pytest.mark.parametrize(
    "attack",
    [
        LinfMomentumIterative(MomentumParams(), seed=0),
        LinfNesterovIterative(MomentumParams(), seed=0),
        LinfVarianceTuning(VarianceTuningParams(), seed=0),
        LinfJitter(JitterParams(), seed=0),
        L2DeepFool(DeepFoolParams(), seed=0),
        L2ProjectedGradientDescent(L2PgdParams(random_start=False), seed=0),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_zero_gradients_and_zero_logits_give_no_nan(attack: Attack[Any]) -> None:
    x, y = interior(4), torch.zeros(4, dtype=torch.int64)

    outcome = attack(Linear(scale=0.0), x, y, radius=0.1)

    assert bool(outcome.adversarial.isfinite().all())
    assert bool(outcome.finite.all())
    assert bool((outcome.prediction == 0).all())


def test_momentum_outlives_a_step_without_gradient() -> None:
    # Right of 0.6 the network is flat: with the momentum of the first steps the attack goes on.
    class Plateau(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            height = x.flatten(1)[:, 0].clamp(max=0.6)
            return torch.stack([-height, height - 2.0], dim=1)

    x, y = torch.full((1, 1, 1, 2), 0.5), torch.zeros(1, dtype=torch.int64)

    outcome = LinfMomentumIterative(MomentumParams(steps=4, step_size="0.06"), seed=0)(
        Plateau(), x, y, radius=0.4
    )

    assert float(outcome.adversarial[0, 0, 0, 0]) == pytest.approx(0.74)
    assert bool(outcome.flat.all())


def test_margin_works_where_cross_entropy_is_saturated() -> None:
    x = interior(20)
    steep = Linear(scale=1e4)
    y = steep(x).argmax(dim=1)

    by_entropy = LinfProjectedGradientDescent(PgdParams(step_size="0.1"), seed=0)(
        steep, x, y, radius=0.3
    )
    by_margin = LinfCarliniWagner(LinfCwParams(step_size="0.1"), seed=0)(steep, x, y, radius=0.3)

    assert int(by_entropy.flat.sum()) > 10
    # Fooled by far more than the confidence, a sample's gradient is zero, but not blind.
    assert int(by_margin.flat.sum()) == 0
    assert int(by_margin.worst.sum()) < int(by_entropy.worst.sum())


@pytest.mark.parametrize(
    "attack",
    [
        L2CarliniWagner(L2CwParams(steps=20, learning_rate=0.05), seed=0),
        L2DeepFool(DeepFoolParams(), seed=0),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_one_run_gives_the_flags_of_runs_with_each_budget(attack: Attack[Any]) -> None:
    x, y = batch()
    radii = [0.0, 0.1, 0.3, 1.0]

    together = attack.at_budgets(network(), x, y, radii=radii)

    for radius, outcome in zip(radii, together, strict=True):
        alone = attack(network(), x, y, radius=radius)
        assert torch.equal(outcome.worst, alone.worst)
        assert torch.equal(outcome.prediction, alone.prediction)
        assert torch.allclose(outcome.adversarial, alone.adversarial, atol=1e-6)
        assert bool((outcome.distance <= radius + 1e-6).all())


def test_attack_that_aims_at_a_budget_shares_no_run() -> None:
    x, y = batch()

    with pytest.raises(ValueError, match="needs a run for each budget"):
        LinfMomentumIterative(MomentumParams(), seed=0).at_budgets(network(), x, y, radii=[0.1])
