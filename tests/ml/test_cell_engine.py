"""What cells of one job share, and what they tell besides their counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overproof.catalog.attacks import ATTACKS
from overproof.catalog.gradient_attacks import DeepFoolParams, LinfCwParams
from overproof.core.spec import PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.attack.cells import Cell, CellOutcome
from overproof.ml.attack.cw import LinfCarliniWagner
from overproof.ml.attack.deepfool import L2DeepFool
from overproof.ml.attack.engine import CellEngine, _grouped
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.train.evaluation import pixels_of

COUNT = 10
CPU = torch.device("cpu")


class Small(nn.Module):
    """Three classes; counts the images that it is shown."""

    def __init__(self, classes: int = 3, scale: float = 4.0) -> None:
        super().__init__()
        draws = uniform_noise(torch.arange(classes), (12,), 8, "weight") - 0.5
        self.weight = nn.Parameter(draws * scale)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return (x.flatten(1) @ self.weight.T).tanh()


def images() -> Tensor:
    return (uniform_noise(torch.arange(COUNT), (3, 2, 2), 3) * 255).to(torch.uint8)


def an_engine(
    cells: list[Cell],
    model: nn.Module,
    rows_at_once: int = 4,
    device: torch.device | Sequence[torch.device] = CPU,
) -> CellEngine:
    return CellEngine(
        model,
        images(),
        model(pixels_of(images())).argmax(dim=1),
        cells,
        device=device,
        rows_at_once=rows_at_once,
    )


def run(engine: CellEngine) -> list[CellOutcome]:
    for index in range(engine.total_steps):
        engine.step(index)
    return engine.outcomes()


def an_attack(name: str, **params: Any) -> Attack[Any]:
    made: Attack[Any] = ATTACKS.load(name)(
        ATTACKS.resolve(PluginRef(name=name, params=params)), seed=0
    )
    return made


@pytest.mark.parametrize(
    "attack",
    [
        L2DeepFool(DeepFoolParams(), seed=0),
        an_attack("cw-l2", steps=15, learning_rate=0.05),
        an_attack("fab-t-linf", steps=5, targets=2),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_budgets_of_a_minimum_norm_attack_are_one_run(attack: Attack[Any]) -> None:
    radii = (0.02, 0.1, 0.4)
    model = Small()

    together = run(an_engine([Cell(attack, radius) for radius in radii], model))
    rows = model.rows
    alone = [run(an_engine([Cell(attack, radius)], Small()))[0] for radius in radii]

    assert sum(outcome.forward_passes for outcome in together) <= rows
    x, y = pixels_of(images()), together[0].label
    for radius, shared, apart in zip(radii, together, alone, strict=True):
        assert shared.counts() == apart.counts()
        assert torch.equal(shared.distance, apart.distance)
        assert torch.equal(shared.nearest, apart.nearest)
        assert torch.equal(shared.worst, attack(Small(), x, y, radius=radius).worst)
    assert together[0].forward_passes < alone[0].forward_passes


def test_only_attacks_that_share_budgets_are_grouped_on_a_cpu() -> None:
    deepfool = L2DeepFool(DeepFoolParams(), seed=0)
    restarts = an_attack("fab-linf", restarts=2)
    cells = [
        Cell(deepfool, 0.1),
        Cell(restarts, 0.1),
        Cell(deepfool, 0.2),
        Cell(restarts, 0.2),
        Cell(L2DeepFool(DeepFoolParams(), seed=1), 0.1),
    ]

    assert _grouped(cells, stack=False) == [(0, 2), (1,), (3,), (4,)]


def test_cell_tells_what_five_steps_would_have_left() -> None:
    def cell(steps: int) -> Cell:
        params = LinfCwParams(steps=steps, step_size="0.01")
        return Cell(LinfCarliniWagner(params, seed=0), 0.1)

    longer, shorter = run(an_engine([cell(10), cell(5)], Small()))

    readings = ("robust_s1", "robust_s2", "robust_s3")
    assert longer.shorter_runs() == {"5": {name: shorter.counts()[name] for name in readings}}
    assert longer.counts() != shorter.counts()
    assert shorter.shorter_runs() == {}


def test_parts_of_a_cascade_add_up_and_its_notes_survive_a_restart() -> None:
    attack = an_attack("autoattack-linf", steps=3, targets=1, queries=20)
    cells = [Cell(attack, 0.05), Cell(attack, 0.2)]
    straight = run(an_engine(cells, Small(classes=2)))

    resumed = an_engine(cells, Small(classes=2))
    for index in range(resumed.total_steps):
        resumed.step(index)
        state = resumed.state()
        resumed = an_engine(cells, Small(classes=2))
        resumed.load_state(state)

    for one, other in zip(straight, resumed.outcomes(), strict=True):
        counts = one.counts()
        broken = one.broken_by_part()
        assert list(broken) == ["apgd-ce", "apgd-t-margin", "fab-t", "square"]
        assert sum(broken.values()) == counts["clean_correct"] - counts["robust_s2"]
        assert one.notes == other.notes
        assert "DLR" in one.notes[0]
        assert other.counts() == counts
        assert other.broken_by_part() == broken
        assert (other.classes, other.probabilities) == (2, False)


def test_random_outputs_give_no_number_unless_the_attack_averages_over_draws() -> None:
    class Noisy(Small):
        def forward(self, x: Tensor) -> Tensor:
            # Other noise at every look, drawn without a global generator.
            look = uniform_noise(torch.arange(len(x)), (3,), self.rows, "noise")
            return super().forward(x) + 0.1 * look

    cells = [
        Cell(an_attack("fgsm-linf"), 0.1),
        Cell(an_attack("apgd-ce-linf", steps=2), 0.1),
        Cell(an_attack("apgd-ce-linf", steps=2, eot_iterations=2), 0.1),
        Cell(an_attack("autoattack-linf", version="rand", steps=2), 0.1),
    ]

    faults = [outcome.fault() for outcome in run(an_engine(cells, Noisy()))]

    assert [fault is None for fault in faults] == [False, False, True, True]
    assert "random outputs" in str(faults[0])


def test_outputs_that_look_like_probabilities_are_told() -> None:
    class Softmax(Small):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(dim=1)

    (outcome,) = run(an_engine([Cell(an_attack("fgsm-linf"), 0.1)], Softmax()))

    assert outcome.probabilities
    assert outcome.classes == 3


def test_budgets_of_a_cascade_share_fab_and_keep_the_flags_of_cells_alone() -> None:
    attack = an_attack("autoattack-linf", steps=4, targets=2, queries=10)
    radii = (0.02, 0.05, 0.1)

    together = run(an_engine([Cell(attack, radius) for radius in radii], Small(classes=5)))

    x, y = pixels_of(images()), together[0].label
    passes = []
    for radius, outcome in zip(radii, together, strict=True):
        (apart,) = run(an_engine([Cell(attack, radius)], Small(classes=5)))
        plain = attack(Small(classes=5), x, y, radius=radius)
        for flags in (outcome.worst, apart.worst):
            assert torch.equal(flags, plain.worst)
        for parts in (outcome.broken_by, apart.broken_by):
            assert torch.equal(parts, plain.broken_by)
        assert torch.equal(outcome.adversarial_prediction == y, outcome.worst)
        assert float(outcome.distance.max()) <= radius + 1e-6
        passes.append((outcome.forward_passes, apart.forward_passes))
    assert sum(one for one, _ in passes) < sum(other for _, other in passes)
    assert len({int(outcome.worst.sum()) for outcome in together}) > 1


@pytest.mark.parametrize("name", ["pgd-linf", "fab-t-linf", "autoattack-linf"])
def test_shards_on_several_devices_and_other_batches_keep_all_flags(name: str) -> None:
    params: dict[str, Any] = {"steps": 4}
    if name == "autoattack-linf":
        params |= {"targets": 2, "queries": 10}
    cells = [Cell(an_attack(name, **params), radius) for radius in (0.02, 0.1)]

    whole = run(an_engine(cells, Small(classes=5)))
    shards = run(an_engine(cells, Small(classes=5), device=[CPU, CPU]))
    large = run(an_engine(cells, Small(classes=5), rows_at_once=100))

    for one, other, third in zip(whole, shards, large, strict=True):
        assert torch.equal(one.worst, other.worst)
        assert torch.equal(one.worst, third.worst)
        assert torch.equal(one.adversarial_prediction, other.adversarial_prediction)
        # No work is done twice; by rounding, a sample may fall a step sooner in another batch.
        assert other.forward_passes == pytest.approx(one.forward_passes, rel=0.05)


def test_survivors_of_the_whole_test_set_fill_the_batches() -> None:
    class Noted(Small):
        def __init__(self) -> None:
            super().__init__(classes=5)
            self.sizes: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.sizes.append(len(x))
            return super().forward(x)

    model = Noted()
    labels = model(pixels_of(images())).argmax(dim=1)
    labels[::2] = (labels[::2] + 1) % 5  # every other image is wrong when clean
    cell = Cell(an_attack("square-linf", queries=3), 1e-6)
    engine = CellEngine(model, images(), labels, [cell], device=CPU, rows_at_once=4)
    model.sizes.clear()

    (outcome,) = run(engine)

    clean = [4, 4, 4, 2]  # the first batch twice
    assert model.sizes == [*clean, *[4] * 5, *[1] * 5]  # a start, queries and the last look
    assert int(outcome.worst.sum()) == 5
    assert torch.equal(outcome.adversarial_prediction == outcome.label, outcome.worst)


def test_pulse_stops_a_step_and_leaves_the_state_before_it() -> None:
    class Stop(Exception):
        pass

    cell = Cell(an_attack("square-linf", queries=1_000), 1e-6)
    straight = run(an_engine([cell], Small()))[0]
    engine = an_engine([cell], Small())
    clean_steps = 3
    for index in range(clean_steps):
        engine.step(index)
    before = engine.state()
    looks = []

    def pulse() -> None:
        looks.append(1)
        if len(looks) == 20:
            raise Stop

    engine.pulse = pulse
    with pytest.raises(Stop):
        engine.step(clean_steps)
    after = engine.state()

    assert all(torch.equal(after[name], value) for name, value in before.items())
    resumed = an_engine([cell], Small())
    resumed.load_state(after)
    for index in range(clean_steps, resumed.total_steps):
        resumed.step(index)
    assert torch.equal(resumed.outcomes()[0].worst, straight.worst)


_FIFTY_SUITES = """
import resource
import torch
from tests.ml.test_cell_engine import Cell, Small, an_attack, an_engine, run

attacks = [
    an_attack("fgsm-linf"),
    an_attack("pgd-linf", steps=2),
    an_attack("vmi-fgsm-linf", steps=2, neighbours=1),
    an_attack("autoattack-linf", steps=2, targets=1, queries=4),
]
cells = [Cell(attack, 0.1) for attack in attacks]
model = Small(classes=5)
for i in range(55):
    run(an_engine(cells, model, rows_at_once=10))
    if i == 4:
        first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first)
"""


def test_fifty_suites_take_no_more_memory_than_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIFTY_SUITES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        check=True,
    )

    assert int(done.stdout) < 50 * 1024  # KiB
