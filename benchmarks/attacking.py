"""Attacks against those of torchattacks: the same process, network, images and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torchattacks
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.record import Record
from overproof.catalog.attacks import ATTACKS
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.attack.cells import Cell, CellOutcome
from overproof.ml.attack.engine import CellEngine
from overproof.ml.datasets.base import load
from overproof.ml.devices import device_facts, pick_device
from overproof.ml.kernels.network import fast_network
from overproof.ml.models.base import Normalized, build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.evaluation import pixels_of
from overproof.ml.train.means import multiplications
from overproof.runtime.settings import usable_cores

PREFIX = "attack"

IMAGES = 32
ROWS_AT_ONCE = 64  # as a job on a CPU, see `handlers.inputs.rows_at_once`
NETWORK = PluginRef(name="convnet", params={"width": 128, "depth": 3})
FACTS = ImageFacts(channels=3, size=(32, 32), classes=10, mean=(0.3,) * 3, std=(0.37,) * 3)
TRAINING_STEPS = 40
# Digits are easier than photographs: budgets twice or four times those of the paper leave the
# shares of samples that its tables show.
SUITE_BUDGETS = (4 / 255, 8 / 255, 16 / 255)
AUTOATTACK_BUDGETS = (4 / 255, 8 / 255, 12 / 255, 16 / 255)
# Square's share of AutoAttack grows with its queries, of which there are 5,000 in the paper; what
# a query costs does not depend on their number.
QUERIES = 150
FEW_IMAGES = 16  # of the attacks that take thousands of passes a sample


class Counting(nn.Module):
    """The network with a count of the rows that pass through it, and the time of these passes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.forward_rows = self.backward_rows = 0
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = _Timed.apply(x, self, x.requires_grad and torch.is_grad_enabled())
        return logits


class _Timed(torch.autograd.Function):
    """Forward and backward pass of a network as one node, so that the clock sees nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Counting, with_history: bool) -> Tensor:
        started = _now()
        ctx.counter = counter
        with torch.set_grad_enabled(with_history):
            ctx.x = x.detach().requires_grad_(with_history)
            ctx.logits = counter.network(ctx.x)
        _wait(x.device)
        counter.forward_rows += len(x)
        counter.seconds += _now() - started
        logits: Tensor = ctx.logits.detach()
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        started = _now()
        # Of one pass forward several may come back: a network of K classes has K gradients.
        (gradient,) = torch.autograd.grad(ctx.logits, ctx.x, gradients, retain_graph=True)
        _wait(gradient.device)
        ctx.counter.backward_rows += len(gradient)
        ctx.counter.seconds += _now() - started
        return gradient, None, None


@dataclass(frozen=True)
class Comparison:
    """The same samples left by our cells and by attacks of torchattacks.

    Attributes:
        name: of the record.
        cells: ours; they run in one engine, as in one job.
        theirs: an attack of torchattacks on a network, one for each number in `_robust`.
        images: how many are attacked.
        worst: whether a sample counts as robust only if it is right at every point looked at, when
            clean among them (S2), or if it is right at the last one (S1).
    """

    name: str
    cells: tuple[Cell, ...]
    theirs: tuple[Callable[[nn.Module], Any], ...]
    images: int
    worst: bool = True


def run() -> list[Record]:
    """Each comparison on one thread and on all cores; facts tell the passes of both sides."""
    device = pick_device()
    network, x, y = _trained(device)
    threads = torch.get_num_threads()
    records = []
    try:
        for count in sorted({1, usable_cores()}):
            torch.set_num_threads(count)
            _robust(network, _comparisons()[0], x[:4], y[:4])  # the first passes are slow
            for comparison in _comparisons():
                records += _compare(comparison, network, x, y, device)
    finally:
        torch.set_num_threads(threads)
    return records


def _compare(
    comparison: Comparison, network: Normalized, x: Tensor, y: Tensor, device: torch.device
) -> list[Record]:
    x, y = x[: comparison.images], y[: comparison.images]
    theirs = Counting(network)
    clock = _Clock(device)
    left = _robust(theirs, comparison, x, y)
    theirs_s = clock.seconds()
    clock = _Clock(device)
    began = time.perf_counter()  # a compiler is another process
    # As in a job of the paper's 10,000 images; preparing is told apart.
    work = multiplications(network.network, FACTS) * 10_000
    fast, means = fast_network(network, work, device=device)
    prepared_s = time.perf_counter() - began
    ours = Counting(fast)
    engine = CellEngine(
        ours,
        (x * 255).round().to(torch.uint8),
        y,
        comparison.cells,
        device=device,
        rows_at_once=ROWS_AT_ONCE,
    )
    for index in range(engine.total_steps):
        engine.step(index)
    outcomes = engine.outcomes()
    ours_s = clock.seconds()
    outside = 1.0 - ours.seconds / ours_s
    facts = {
        **device_facts(device),
        "clock": "processor" if _alone() else "wall",
        "network": "convnet, width 128, depth 3, 3 × 32 × 32",
        "means": means,
        "prepared_s": round(prepared_s, 2),
        "images": comparison.images,
        "robust": _left(comparison, outcomes),
        "robust_reference": left,
        "forward_passes": ours.forward_rows,
        "forward_passes_reference": theirs.forward_rows,
        "backward_passes": ours.backward_rows,
        "backward_passes_reference": theirs.backward_rows,
        "outside_of_passes": round(outside, 3),
        "outside_of_passes_reference": round(1.0 - theirs.seconds / theirs_s, 3),
    }
    suffix = "" if torch.get_num_threads() == 1 else "-all-cores"
    records = [
        Record(
            f"attack.{comparison.name}{suffix}", ours_s, "s", "torchattacks", theirs_s, facts=facts
        )
    ]
    if comparison.name == "ddr_suite":
        records.append(
            Record(f"attack.overhead_fraction{suffix}", outside, "of ddr_suite", "limit", 0.1)
        )
    return records


def _robust(network: nn.Module, comparison: Comparison, x: Tensor, y: Tensor) -> list[int]:
    """Samples that each attack of torchattacks leaves right."""
    with torch.no_grad():
        right = network(x).argmax(dim=1) == y
    left = []
    for attack in comparison.theirs:
        x_adv = attack(network)(x, y)
        with torch.no_grad():
            still = network(x_adv).argmax(dim=1) == y
        left.append(int((still & right if comparison.worst else still).sum()))
    return left


def _left(comparison: Comparison, outcomes: list[CellOutcome]) -> list[int]:
    """What `_robust` counts, of our cells: each at its own number of steps, then at fewer."""
    if comparison.worst:
        return [outcome.counts()["robust_s2"] for outcome in outcomes]
    left = []
    for outcome in outcomes:
        left.append(outcome.counts()["robust_s1"])
        left += [readings["robust_s1"] for readings in outcome.shorter_runs().values()]
    return left


def _comparisons() -> tuple[Comparison, ...]:
    preset = {"preset": "torchattacks"}
    return (
        _suite(),
        Comparison(
            "autoattack",
            _cells("autoattack-linf", AUTOATTACK_BUDGETS, **preset, queries=QUERIES),
            tuple(partial(_autoattack, eps=eps) for eps in AUTOATTACK_BUDGETS),
            FEW_IMAGES,
        ),
        Comparison(
            "pgd",
            _cells("pgd-linf", SUITE_BUDGETS[:1]),
            tuple(partial(torchattacks.PGD, eps=SUITE_BUDGETS[0], steps=n) for n in (10, 5)),
            IMAGES,
            worst=False,
        ),
        Comparison(
            "apgd",
            _cells("apgd-ce-linf", AUTOATTACK_BUDGETS[1:2], **preset),
            (partial(torchattacks.APGD, eps=AUTOATTACK_BUDGETS[1]),),
            IMAGES,
        ),
        Comparison(
            "fab",
            _cells("fab-t-linf", AUTOATTACK_BUDGETS, **preset),
            tuple(
                partial(torchattacks.FAB, eps=eps, multi_targeted=True)
                for eps in AUTOATTACK_BUDGETS
            ),
            FEW_IMAGES // 2,
        ),
        Comparison(
            "square",
            _cells("square-linf", AUTOATTACK_BUDGETS[1:2], **preset, queries=QUERIES),
            (partial(torchattacks.Square, eps=AUTOATTACK_BUDGETS[1], n_queries=QUERIES),),
            FEW_IMAGES,
        ),
    )


def _suite() -> Comparison:
    """DD-RobustBench's five attacks at three budgets; iterated ones for 10 and for 5 steps."""
    cells: list[Cell] = []
    theirs: list[Callable[[nn.Module], Any]] = []
    for eps in SUITE_BUDGETS:
        cells += _cells("fgsm-linf", (eps,))
        theirs.append(partial(torchattacks.FGSM, eps=eps))
    for name, attack in (
        ("pgd-linf", torchattacks.PGD),
        ("cw-linf", LinfCw),
        ("vmi-fgsm-linf", torchattacks.VMIFGSM),
        ("jitter-linf", torchattacks.Jitter),
    ):
        cells += _cells(name, SUITE_BUDGETS)
        theirs += [
            partial(attack, eps=eps, steps=steps) for eps in SUITE_BUDGETS for steps in (10, 5)
        ]
    return Comparison("ddr_suite", tuple(cells), tuple(theirs), IMAGES, worst=False)


class LinfCw(torchattacks.PGD):  # type: ignore[misc]
    """The CW of DD-RobustBench, which torchattacks lacks: its PGD on the margin up to 50."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.attack = "CW"

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Adversarial images."""
        delta = torch.empty_like(images).uniform_(-self.eps, self.eps)
        delta = torch.clamp(delta, -images, 1.0 - images)
        for _ in range(self.steps):
            delta.requires_grad_(True)
            logits = self.get_logits(images + delta)
            true = logits.gather(1, labels.view(-1, 1)).view(-1)
            other = logits.scatter(1, labels.view(-1, 1), -torch.inf).amax(dim=1)
            cost = -(true - other + 50.0).clamp(min=0.0).sum()
            (gradient,) = torch.autograd.grad(cost, delta)
            delta = (delta.detach() + self.alpha * gradient.sign()).clamp(-self.eps, self.eps)
            delta = torch.clamp(delta, -images, 1.0 - images)
        return (images + delta).detach()


def _cells(name: str, budgets: tuple[float, ...], **params: Any) -> tuple[Cell, ...]:
    attack: Attack[Any] = ATTACKS.load(name)(
        ATTACKS.resolve(PluginRef(name=name, params=params)), seed=0
    )
    return tuple(Cell(attack, budget) for budget in budgets)


def _autoattack(model: nn.Module, eps: float) -> Any:
    attack = torchattacks.AutoAttack(model, eps=eps, n_classes=FACTS.classes, seed=0)
    attack._autoattack.attacks[-1].n_queries = QUERIES
    return attack


def _trained(device: torch.device) -> tuple[Normalized, Tensor, Tensor]:
    """A network that reads digits, enlarged to the size of CIFAR images; test images, labels."""
    data = load(DatasetSpec(name="digits", subset_per_class=60, test_subset_per_class=10), None)

    def enlarged(images: Tensor) -> Tensor:
        big = functional.interpolate(pixels_of(images), scale_factor=4, mode="bilinear")
        return big.expand(-1, 3, -1, -1).contiguous().to(device)

    network = build(NETWORK, FACTS, 0).to(device)
    x, y = enlarged(data.train_images), data.train_labels.to(device)
    draws = generator(0, "batches")
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(TRAINING_STEPS):
        rows = torch.randint(len(x), (32,), generator=draws).to(device)
        optimiser.zero_grad()
        loss = functional.cross_entropy(network(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    network.eval().requires_grad_(False)
    order = torch.randperm(len(data.test_images), generator=draws)[:IMAGES]
    return network, enlarged(data.test_images[order]), data.test_labels[order].to(device)


class _Clock:
    """Seconds since it was made.

    On one thread of a CPU those that the process itself computed, whatever else the machine does.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = _now()

    def seconds(self) -> float:
        """Until the device is done."""
        _wait(self._device)
        return _now() - self._began


def _now() -> float:
    return time.process_time() if _alone() else time.perf_counter()


def _alone() -> bool:
    return torch.get_num_threads() == 1 and not torch.cuda.is_available()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
