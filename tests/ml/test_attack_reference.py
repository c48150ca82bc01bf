"""FGSM, BIM and PGD against closed forms, and the engine that runs attacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overproof.catalog.gradient_attacks import BimParams, FgsmParams, PgdParams
from overproof.errors import ShapeError
from overproof.ml.attack.ball import project_linf
from overproof.ml.attack.base import Attack
from overproof.ml.attack.cells import Cell, CellOutcome
from overproof.ml.attack.engine import CellEngine, _grouped
from overproof.ml.attack.fgsm import LinfFastGradientSign
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.pgd import LinfBasicIterative, LinfProjectedGradientDescent
from overproof.ml.seeding import generator

WEIGHT = torch.tensor([[1.0, -2.0, 0.0, 0.5], [-1.0, 1.0, 0.0, 3.0]])


class Linear(nn.Module):
    """Logits W x + b of images of four pixels, two classes."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT * scale)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


class Counting(Linear):
    """Counts the images that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return super().forward(x)


def interior(count: int) -> Tensor:
    """Images all of whose pixels are in [0.3, 0.7]."""
    return uniform_noise(torch.arange(count), (1, 2, 2), 5) * 0.4 + 0.3


def all_attacks(steps: int = 30) -> list[Attack[Any]]:
    return [
        LinfFastGradientSign(FgsmParams(), seed=0),
        LinfBasicIterative(BimParams(steps=steps), seed=0),
        LinfProjectedGradientDescent(PgdParams(steps=steps), seed=0),
    ]


@pytest.mark.parametrize("attack", all_attacks(), ids=lambda attack: type(attack).__name__)
@pytest.mark.parametrize("radius", [2 / 255, 0.1])
def test_margin_of_a_linear_network_falls_by_radius_times_l1_norm(
    attack: Attack[Any], radius: float
) -> None:
    x, y = interior(50), torch.tensor([0, 1]).repeat(25)

    outcome = attack(Linear(), x, y, radius=radius)

    direction = WEIGHT[1 - y] - WEIGHT[y]
    moved = ((outcome.adversarial - x).flatten(1) * direction).sum(dim=1)
    assert torch.allclose(moved, radius * direction.abs().sum(dim=1), atol=1e-5)
    # The third pixel has no weight, so its gradient is zero. FGSM and BIM leave it alone.
    if not isinstance(attack, LinfProjectedGradientDescent):
        assert torch.equal(outcome.adversarial[:, 0, 1, 0], x[:, 0, 1, 0])


def test_projection_of_a_hand_made_case() -> None:
    x = torch.tensor([[[[0.0, 0.5], [0.95, 0.5]]]])
    x_adv = torch.tensor([[[[-0.05, 0.9], [1.2, 0.45]]]])

    projected = project_linf(x_adv, x, torch.tensor([0.1]))

    assert torch.allclose(projected, torch.tensor([[[[0.0, 0.6], [1.0, 0.45]]]]))


def test_pgd_starts_at_the_scaled_noise_of_its_sample() -> None:
    x, y = interior(6), torch.zeros(6, dtype=torch.int64)
    still = LinfProjectedGradientDescent(PgdParams(steps=1, step_size="0"), seed=3)

    outcome = still(Linear(), x, y, radius=0.1, ids=torch.arange(6) + 10)

    noise = uniform_noise(torch.arange(6) + 10, (1, 2, 2), 3, "start", 0)
    assert torch.allclose(outcome.adversarial, x + 0.1 * (2 * noise - 1), atol=1e-6)


def small_network() -> nn.Module:
    torch_state = generator(1, "oracle")
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 64, 5)
    )
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=torch_state) * 0.2
    return network.eval()


def oracle_batch() -> tuple[Tensor, Tensor]:
    return uniform_noise(torch.arange(12), (3, 8, 8), 2), torch.arange(12) % 5


def test_restarts_return_the_first_that_fools_and_never_help_the_victim() -> None:
    network, (x, y) = small_network(), oracle_batch()
    y = network(x).argmax(dim=1)
    seeds = [LinfProjectedGradientDescent(PgdParams(steps=1, restarts=n), seed=0) for n in (1, 4)]

    once, often = (attack(network, x, y, radius=0.02) for attack in seeds)

    fooled = once.prediction != y
    assert torch.equal(often.adversarial[fooled], once.adversarial[fooled])
    assert not bool((often.worst & ~once.worst).any())
    assert (once.forward_passes, once.backward_passes) == (24, 12)
    assert (often.forward_passes, often.backward_passes) == (12 * (4 + 3 + 1), 48)


def test_worst_case_counts_a_sample_that_is_fooled_only_on_the_way() -> None:
    # The only pixel that matters steps over the wrong region: 0.5 right, 0.6 wrong, 0.7 right.
    class Stripe(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            value = x.flatten(1)[:, 0]
            wrong = 0.05 - (value - 0.6).abs()
            # Pushes up everywhere, without deciding anything.
            push = (value - value.detach()) * 10
            return torch.stack([-wrong.detach() - push, wrong.detach() + push], dim=1)

    x, y = torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, dtype=torch.int64)

    outcome = LinfBasicIterative(BimParams(steps=2, step_size="0.1"), seed=0)(
        Stripe(), x, y, radius=0.3
    )

    assert outcome.prediction.tolist() == [0]
    assert outcome.worst.tolist() == [False]


def test_flat_gradients_are_reported() -> None:
    x, y = interior(4), torch.zeros(4, dtype=torch.int64)
    saturated = Linear(scale=-1e4)
    y = saturated(x).argmax(dim=1)

    outcome = LinfFastGradientSign(FgsmParams(), seed=0)(saturated, x, y, radius=0.01)

    assert outcome.flat.all()
    assert torch.equal(outcome.adversarial, x)


# ---- the engine --------------------------------------------------------------------------------


def bytes_of(count: int) -> Tensor:
    return (interior(count) * 255).to(torch.uint8)


def an_engine(
    cells: list[Cell], count: int = 10, rows_at_once: int = 4, model: nn.Module | None = None
) -> CellEngine:
    return CellEngine(
        model or Linear(),
        bytes_of(count),
        torch.arange(count) % 2,
        cells,
        device=torch.device("cpu"),
        rows_at_once=rows_at_once,
    )


def run(engine: CellEngine) -> list[CellOutcome]:
    for index in range(engine.total_steps):
        engine.step(index)
    return engine.outcomes()


@pytest.mark.parametrize("count", [10, 9])  # in batches of four: the last one is of two, of one
def test_engine_gives_every_cell_what_its_attack_gives_alone(count: int) -> None:
    cells = [Cell(attack, radius) for attack in all_attacks(3) for radius in (0.02, 0.1)]

    outcomes = run(an_engine(cells, count=count))

    x, y = bytes_of(count).float() / 255, torch.arange(count) % 2
    for cell, outcome in zip(cells, outcomes, strict=True):
        alone = cell.attack(Linear(), x, y, radius=cell.radius)
        assert torch.equal(outcome.label, y)
        assert torch.equal(outcome.clean_prediction, alone.clean_prediction)
        assert torch.equal(outcome.adversarial_prediction, alone.prediction)
        assert torch.equal(outcome.worst, alone.worst)
        assert torch.allclose(outcome.distance, alone.distance, atol=1e-6)


def test_outcome_of_a_cell_is_the_same_bytes_whichever_cells_are_beside_it() -> None:
    cells = [Cell(attack, 0.05) for attack in all_attacks(3)]

    together = run(an_engine(cells))

    for cell, outcome in zip(cells, together, strict=True):
        (alone,) = run(an_engine([cell]))
        assert torch.equal(outcome.distance, alone.distance)
        assert outcome.counts() == alone.counts()
        assert (outcome.forward_passes, outcome.backward_passes) == (
            alone.forward_passes,
            alone.backward_passes,
        )


def test_clean_pass_and_its_gradient_are_shared() -> None:
    model = Counting()
    cells = [Cell(LinfFastGradientSign(FgsmParams(), seed=0), r) for r in (0.01, 0.02, 0.03)]

    outcomes = run(an_engine(cells, model=model))

    assert model.rows == 10 * (1 + 3) + 4  # and a second look at the first batch
    assert [outcome.forward_passes for outcome in outcomes] == [10, 10, 10]
    assert [outcome.backward_passes for outcome in outcomes] == [0, 0, 0]


def test_cells_of_one_attack_are_stacked_where_launches_cost() -> None:
    fgsm, bim, pgd = all_attacks()
    other_seed = LinfProjectedGradientDescent(PgdParams(steps=30), seed=1)
    cells = [Cell(fgsm, 0.1), Cell(pgd, 0.1), Cell(fgsm, 0.2), Cell(other_seed, 0.1), Cell(bim, 1)]

    assert _grouped(cells, stack=True) == [(0, 2), (1,), (3,), (4,)]
    assert _grouped(cells, stack=False) == [(0,), (1,), (2,), (3,), (4,)]


def test_stacked_cells_give_the_outcomes_of_cells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(attack, radius) for attack in all_attacks(3) for radius in (0.02, 0.1)]
    apart = run(an_engine(cells))

    monkeypatch.setattr(
        "overproof.ml.attack.engine._grouped", lambda cells, *, stack: _grouped(cells, stack=True)
    )
    stacked = run(an_engine(cells))

    for one, other in zip(apart, stacked, strict=True):
        assert one.counts() == other.counts()
        assert torch.allclose(one.distance, other.distance, atol=1e-6)
        assert one.forward_passes == other.forward_passes


def test_engine_resumed_after_any_step_equals_the_straight_run() -> None:
    cells = [Cell(attack, 0.05) for attack in all_attacks(3)]
    straight = run(an_engine(cells))
    resumed = an_engine(cells)

    for index in range(resumed.total_steps):
        state = resumed.state()
        resumed = an_engine(cells)
        resumed.load_state(state)
        resumed.step(index)

    for one, other in zip(straight, resumed.outcomes(), strict=True):
        assert torch.equal(one.distance, other.distance)
        assert one.counts() == other.counts()
        assert one.forward_passes == other.forward_passes


def test_readings_are_ordered_and_count_what_they_say() -> None:
    outcome = CellOutcome(
        label=torch.tensor([0, 0, 0, 0]),
        clean_prediction=torch.tensor([0, 0, 0, 1]),
        adversarial_prediction=torch.tensor([0, 0, 1, 0]),
        worst=torch.tensor([True, False, False, False]),
        distance=torch.full((4,), 0.1),
        nearest=torch.full((4,), 0.1),
        finite=torch.ones(4, dtype=torch.bool),
        flat=torch.tensor([False, True, False, False]),
        broken_by=torch.full((4,), -1),
        forward_passes=8,
        backward_passes=4,
        radius=0.1,
    )

    assert outcome.counts() == {
        "total": 4,
        "clean_correct": 3,
        "robust_s1": 3,
        "robust_s2": 1,
        "robust_s3": 2,
        "flat_gradients": 1,
    }
    assert outcome.fault() is None


def test_meaningless_cells_say_why() -> None:
    class Broken(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 0.0

    fgsm = LinfFastGradientSign(FgsmParams(), seed=0)

    (infinite,) = run(an_engine([Cell(fgsm, 0.1)], model=Broken()))
    (blind,) = run(an_engine([Cell(fgsm, 0.1)], model=Linear(scale=0.0)))
    (no_budget,) = run(an_engine([Cell(fgsm, 0.0)]))

    assert infinite.fault() == "non-finite logits on 10 samples"
    assert blind.fault() is not None
    assert "unchanged" in blind.fault()  # type: ignore[operator]
    assert no_budget.fault() is None


def test_engine_refuses_images_without_labels() -> None:
    with pytest.raises(ShapeError, match="0 images"):
        an_engine([], count=0)
