"""What every attack of the catalog must do, on a network trained on real digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overproof.catalog.attacks import ATTACKS, attack
from overproof.core.spec import PluginRef
from overproof.core.threat import Norm
from overproof.errors import ShapeError
from overproof.ml.attack.base import Attack, AttackOutcome
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.datasets.base import Dataset
from overproof.ml.models.base import Normalized, build
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.loop import Training
from overproof.ml.train.means import Means
from overproof.ml.train.recipe import Recipe

# A new attack is a row: parameters for a run of a second.
ROWS: dict[str, dict[str, Any]] = {
    "fgsm-linf": {},
    "bim-linf": {"steps": 4, "step_size": "4/255"},
    "pgd-linf": {"steps": 4, "step_size": "4/255", "restarts": 2},
    "pgd-l2": {"steps": 4, "restarts": 2},
    "cw-linf": {"steps": 4, "step_size": "4/255"},
    "cw-l2": {"steps": 15, "learning_rate": 0.05, "search_steps": 2},
    "mi-fgsm-linf": {"steps": 4, "step_size": "4/255"},
    "ni-fgsm-linf": {"steps": 4, "step_size": "4/255"},
    "vmi-fgsm-linf": {"steps": 4, "step_size": "4/255", "neighbours": 2},
    "jitter-linf": {"steps": 6, "step_size": "4/255"},
    "deepfool-l2": {},
    "apgd-ce-linf": {"steps": 4, "restarts": 2},
    "apgd-ce-l2": {"steps": 4},
    "apgd-dlr-linf": {"steps": 4},
    "apgd-dlr-l2": {"steps": 4},
    "apgd-t-linf": {"steps": 4, "targets": 2},
    "apgd-t-l2": {"steps": 4, "targets": 2},
    "fab-linf": {"steps": 3, "restarts": 2},
    "fab-l2": {"steps": 3},
    "fab-t-linf": {"steps": 4, "targets": 2},
    "fab-t-l2": {"steps": 4, "targets": 2},
    "square-linf": {"queries": 40},
    "square-l2": {"queries": 40},
    "autoattack-linf": {"steps": 3, "targets": 2, "queries": 15},
    "autoattack-l2": {"steps": 3, "targets": 2, "queries": 15},
    # Without draws, since those of torchattacks belong to the batch.
    "torchattacks-linf": {"attack": "FGSM"},
    "torchattacks-l2": {"attack": "PGDL2", "steps": 4, "random_start": False},
}
RADII = (0.0, 1 / 255, 16 / 255, 0.2)


def budget(name: str, radius: float, x: Tensor) -> float:
    """The budget of an attack such that every ball holds the L∞ ball of `radius`."""
    return radius if attack(name).norm is Norm.LINF else radius * x[0].numel() ** 0.5


def distances(name: str, x_adv: Tensor, x: Tensor) -> Tensor:
    order = torch.inf if attack(name).norm is Norm.LINF else 2
    measured: Tensor = torch.linalg.vector_norm((x_adv - x).flatten(1).double(), ord=order, dim=1)
    return measured


def an_attack(name: str, seed: int = 0, **over: Any) -> Attack[Any]:
    params = ATTACKS.resolve(PluginRef(name=name, params=ROWS[name] | over))
    made: Attack[Any] = ATTACKS.load(name)(params, seed=seed)
    return made


@pytest.fixture(scope="module")
def victim(digits: Dataset) -> Normalized:
    network = PluginRef(name="convnet", params={"width": 8, "depth": 2})
    recipe = Recipe(
        epochs=8,
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=0.0,
        batch_size=50,
    )
    training = Training(
        [build(network, digits.facts, 0)],
        [0],
        digits.train_images,
        digits.train_labels,
        recipe,
        means=Means.EAGER,
        device=torch.device("cpu"),
    )
    for epoch in range(training.total_steps):
        training.step(epoch)
    return training.networks()[0]


@pytest.fixture(scope="module")
def x(digits: Dataset) -> Tensor:
    return pixels_of(digits.test_images)


@pytest.fixture(scope="module")
def y(digits: Dataset) -> Tensor:
    return digits.test_labels


class Linear(nn.Module):
    """Logits (w·x, 0) of images of four pixels, and two classes that are never likely."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        margin = x.flatten(1) @ self.weight
        zero = torch.zeros_like(margin)
        return torch.stack([margin, zero, zero - 9.0, zero - 9.0], dim=1)


def judged_alone(outcome: AttackOutcome) -> tuple[Tensor, ...]:
    return (
        outcome.adversarial,
        outcome.clean_prediction,
        outcome.prediction,
        outcome.worst,
        outcome.distance,
    )


def test_every_attack_of_the_catalog_has_a_row() -> None:
    assert sorted(ROWS) == ATTACKS.names()


def test_victim_is_worth_attacking(victim: Normalized, x: Tensor, y: Tensor) -> None:
    victim.eval()

    assert (victim(x).argmax(dim=1) == y).float().mean() > 0.7


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("name", ROWS)
def test_result_stays_in_ball_and_box(
    name: str, radius: float, victim: Normalized, x: Tensor, y: Tensor
) -> None:
    before = x.clone()

    outcome = an_attack(name)(victim, x, y, radius=budget(name, radius, x))

    assert torch.equal(x, before)
    measured = distances(name, outcome.adversarial, x)
    assert float(measured.max()) <= budget(name, radius, x) + 1e-6
    assert outcome.adversarial.dtype == torch.float32
    assert 0 <= float(outcome.adversarial.min()) <= float(outcome.adversarial.max()) <= 1
    assert torch.allclose(outcome.distance.double(), measured, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_judgement_is_what_the_network_says(
    name: str, victim: Normalized, x: Tensor, y: Tensor
) -> None:
    outcome = an_attack(name)(victim, x, y, radius=budget(name, 16 / 255, x))

    victim.eval()
    assert torch.equal(outcome.clean_prediction, victim(x).argmax(dim=1))
    assert torch.equal(outcome.prediction, victim(outcome.adversarial).argmax(dim=1))
    last = outcome.prediction == y
    assert not bool((outcome.worst & ~last).any())
    assert not bool((outcome.worst & (outcome.clean_prediction != y)).any())
    fooled = ~last
    assert bool((outcome.nearest[fooled] <= outcome.distance[fooled] + 1e-6).all())
    assert bool((outcome.nearest[outcome.worst] > budget(name, 16 / 255, x)).all())


@pytest.mark.parametrize("name", ROWS)
def test_mode_gradients_and_flags_of_the_network_are_left_alone(
    name: str, victim: Normalized, x: Tensor, y: Tensor
) -> None:
    victim.train()
    victim.network.eval()
    for i, parameter in enumerate(victim.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0)
        parameter.requires_grad_(i % 2 == 0)

    an_attack(name)(victim, x[:4], y[:4], radius=0.1)

    assert victim.training
    assert not victim.network.training
    for i, parameter in enumerate(victim.parameters()):
        assert parameter.requires_grad == (i % 2 == 0)
        assert parameter.grad is not None
        assert bool((parameter.grad == 7.0).all())
        parameter.requires_grad_(True)
        parameter.grad = None


@pytest.mark.parametrize("name", ROWS)
def test_no_budget_changes_nothing(name: str, victim: Normalized, x: Tensor, y: Tensor) -> None:
    outcome = an_attack(name)(victim, x, y, radius=0.0)

    assert torch.equal(outcome.adversarial, x)
    assert torch.equal(outcome.prediction, outcome.clean_prediction)
    assert torch.equal(outcome.worst, outcome.clean_prediction == y)


@pytest.mark.parametrize("name", ROWS)
def test_larger_budget_never_lowers_success_on_a_linear_network(name: str) -> None:
    x = uniform_noise(torch.arange(200), (1, 2, 2), 0) * 0.6 + 0.2
    y = (Linear()(x)[:, 0] < 0).long()
    run = an_attack(name)

    worst = [
        int(run(Linear(), x, y, radius=budget(name, radius, x)).worst.sum())
        for radius in (0.0, 0.01, 0.05, 0.1, 0.15)
    ]

    assert worst[0] == 200
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < worst[1]


@pytest.mark.parametrize("name", ROWS)
def test_attack_beats_random_noise(name: str, victim: Normalized, x: Tensor, y: Tensor) -> None:
    outcome = an_attack(name)(victim, x, y, radius=budget(name, 16 / 255, x))

    signs = torch.where(uniform_noise(torch.arange(len(x)), x.shape[1:], 9) < 0.5, -1.0, 1.0)
    noisy = (x + 16 / 255 * signs).clamp(0, 1)
    assert int(outcome.worst.sum()) < int((victim(noisy).argmax(dim=1) == y).sum())


@pytest.mark.parametrize("name", ROWS)
def test_result_of_a_sample_depends_on_no_other(
    name: str, victim: Normalized, x: Tensor, y: Tensor
) -> None:
    run, ids = an_attack(name), torch.arange(len(x))
    order = torch.arange(len(x)).flip(0)

    whole = judged_alone(run(victim, x, y, radius=0.05, ids=ids))
    shuffled = judged_alone(run(victim, x[order], y[order], radius=0.05, ids=ids[order]))
    alone = judged_alone(run(victim, x[41:42], y[41:42], radius=0.05, ids=ids[41:42]))

    for together, other, single in zip(whole, shuffled, alone, strict=True):
        assert torch.allclose(together[order].float(), other.float(), atol=1e-6)
        assert torch.allclose(together[41:42].float(), single.float(), atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_budgets_in_one_batch_equal_budgets_apart(
    name: str, victim: Normalized, x: Tensor, y: Tensor
) -> None:
    run, ids = an_attack(name), torch.arange(20)
    radii = torch.tensor([0.02, 0.1])

    together = run(
        victim,
        x[:20].repeat(2, 1, 1, 1),
        y[:20].repeat(2),
        radius=radii.repeat_interleave(20),
        ids=ids.repeat(2),
    )

    for i, radius in enumerate(radii.tolist()):
        apart = run(victim, x[:20], y[:20], radius=radius, ids=ids)
        rows = slice(20 * i, 20 * (i + 1))
        assert torch.allclose(together.adversarial[rows], apart.adversarial, atol=1e-6)
        assert torch.equal(together.worst[rows], apart.worst)


@pytest.mark.parametrize("name", ROWS)
def test_same_seed_same_bytes(name: str, victim: Normalized, x: Tensor, y: Tensor) -> None:
    first = an_attack(name)(victim, x, y, radius=0.05)
    torch.rand(3)

    second = an_attack(name)(victim, x, y, radius=0.05)

    assert torch.equal(first.adversarial, second.adversarial)


@pytest.mark.parametrize("name", ["pgd-linf", "pgd-l2", "cw-linf", "vmi-fgsm-linf", "jitter-linf"])
def test_seed_moves_the_draws(name: str, victim: Normalized, x: Tensor, y: Tensor) -> None:
    first = an_attack(name)(victim, x, y, radius=0.05)

    second = an_attack(name, seed=1)(victim, x, y, radius=0.05)

    assert not torch.equal(first.adversarial, second.adversarial)


@pytest.mark.parametrize("name", ROWS)
def test_unusable_inputs_are_refused(name: str, victim: Normalized, x: Tensor, y: Tensor) -> None:
    run = an_attack(name)

    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        run(victim, x * 2, y, radius=0.1)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        run(victim, torch.full_like(x, torch.nan), y, radius=0.1)
    with pytest.raises(ValueError, match="must not be negative"):
        run(victim, x, y, radius=-0.1)
    with pytest.raises(ShapeError, match="labels"):
        run(victim, x, y[:-1], radius=0.1)
    with pytest.raises(ValueError, match=r"labels must lie in 0 … 9"):
        run(victim, x, y + 1, radius=0.1)
    with pytest.raises(ShapeError, match="ids"):
        run(victim, x, y, radius=0.1, ids=torch.arange(3))


class AnySize(nn.Module):
    """Four classes of images of any size and number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 6, 3, padding=1),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(24, 4),
            )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@pytest.mark.parametrize("shape", [(1, 7, 12), (3, 12, 7)])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ROWS)
def test_grey_and_colour_images_that_are_no_squares_work_in_batches_of_any_size(
    name: str, count: int, shape: tuple[int, ...]
) -> None:
    model, x = AnySize(shape[0]).eval(), uniform_noise(torch.arange(count), shape, 1)
    y = model(x).argmax(dim=1)
    radius = budget(name, 0.1, x)

    outcome = an_attack(name)(model, x, y, radius=radius)

    assert outcome.adversarial.shape == x.shape
    assert float(distances(name, outcome.adversarial, x).max()) <= radius + 1e-6
    assert torch.equal(outcome.prediction, model(outcome.adversarial).argmax(dim=1))


@pytest.mark.parametrize("name", [name for name in ROWS if not name.startswith("torchattacks")])
def test_network_in_half_precision_is_judged_in_its_own(name: str) -> None:
    x = uniform_noise(torch.arange(6), (3, 8, 8), 1)
    model = AnySize(3).to(torch.bfloat16).eval()
    y = model(x.bfloat16()).argmax(dim=1)
    radius = budget(name, 0.1, x)

    outcome = an_attack(name)(model, x, y, radius=radius)

    assert outcome.adversarial.dtype == torch.float32
    assert float(distances(name, outcome.adversarial, x).max()) <= radius + 1e-6
    judged = model(outcome.adversarial.bfloat16()).float().argmax(dim=1)
    assert torch.equal(outcome.prediction, judged)


@pytest.mark.parametrize("name", ROWS)
def test_statistics_of_a_network_left_in_training_mode_do_not_move(name: str) -> None:
    x = uniform_noise(torch.arange(4), (3, 8, 8), 1)
    model = AnySize(3)
    y = model.eval()(x).argmax(dim=1)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}

    an_attack(name)(model, x, y, radius=budget(name, 0.05, x))

    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


class Cheating(Attack[Any]):
    """Leaves ball and box, where the victim is surely wrong."""

    def perturb(self, victim: Any, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        victim.predict(1.0 - x)
        victim.predict(x + 10.0)
        return x + 10.0


def test_attack_that_leaves_the_ball_wins_nothing_by_it(
    victim: Normalized, x: Tensor, y: Tensor
) -> None:
    outcome = Cheating(ATTACKS.resolve(PluginRef(name="fgsm")), seed=0)(victim, x, y, radius=1e-9)

    assert float((outcome.adversarial - x).abs().max()) <= 1e-6
    assert torch.equal(outcome.worst, outcome.clean_prediction == y)


def test_loss_of_attacks_is_a_sum(victim: Normalized, x: Tensor, y: Tensor) -> None:
    from overproof.ml.attack.passes import cross_entropy_sum

    victim.eval()
    logits = victim(x)

    expected = functional.cross_entropy(logits, y) * len(x)
    assert torch.allclose(cross_entropy_sum(logits, y), expected)
