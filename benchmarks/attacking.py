"""Attacks against those of torchattacks: the same process, network, images and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchattacks
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.record import Record
from overproof.catalog.attacks import ATTACKS
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.attack.base import Attack
from overproof.ml.datasets.base import load
from overproof.ml.devices import device_facts, pick_device
from overproof.ml.models.base import build
from overproof.ml.seeding import generator
from overproof.ml.shapes import ImageFacts
from overproof.ml.train.evaluation import pixels_of

PREFIX = "attack"

IMAGES = 32
NETWORK = PluginRef(name="convnet", params={"width": 32, "depth": 3})
FACTS = ImageFacts(channels=3, size=(32, 32), classes=10, mean=(0.3,) * 3, std=(0.37,) * 3)
TRAINING_STEPS = 80
BUDGETS = (4 / 255, 8 / 255, 12 / 255, 16 / 255)
QUERIES = 150
STEPS = 10


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
class Pair:
    """One attack here and there.

    Attributes:
        ours: budgets → (budgets, B) samples that stay robust.
        theirs: budget → adversarial images, by the network they attack.
    """

    name: str
    budgets: tuple[float, ...]
    images: int
    ours: Callable[[nn.Module, Tensor, Tensor], Tensor]
    theirs: Callable[[nn.Module, float], Any]


def run() -> list[Record]:
    """Seconds for clean and robust samples by each attack; facts tell the passes of both sides."""
    device = pick_device()
    network, x, y = _trained(device)
    _robust(network, _pairs()[0], x[:4], y[:4])  # the first passes of a process are slow
    records, pgd_passes_s, pgd_s = [], 0.0, 0.0
    for pair in _pairs():
        images, labels = x[: pair.images], y[: pair.images]
        ours, theirs = Counting(network), Counting(network)
        started = _now()
        robust = pair.ours(ours, images, labels).sum(dim=1)
        _wait(device)
        ours_s = _now() - started
        started = _now()
        left = _robust(theirs, pair, images, labels)
        _wait(device)
        theirs_s = _now() - started
        if pair.name == "pgd":
            pgd_passes_s, pgd_s = ours.seconds, ours_s
        facts = {
            **device_facts(device),
            "threads": torch.get_num_threads(),
            "network": "convnet, width 32, depth 3, 3 × 32 × 32",
            "images": pair.images,
            "budgets_of_255": [round(budget * 255) for budget in pair.budgets],
            "robust": robust.tolist(),
            "robust_reference": left,
            "forward_passes": ours.forward_rows,
            "forward_passes_reference": theirs.forward_rows,
            "backward_passes": ours.backward_rows,
            "backward_passes_reference": theirs.backward_rows,
            "outside_of_passes": round(1.0 - ours.seconds / ours_s, 3),
            "outside_of_passes_reference": round(1.0 - theirs.seconds / theirs_s, 3),
        }
        records.append(
            Record(f"attack.{pair.name}", ours_s, "s", "torchattacks", theirs_s, facts=facts)
        )
    share = 1.0 - pgd_passes_s / pgd_s
    return [*records, Record("attack.overhead_fraction", share, "of PGD", "limit", 0.1)]


def _robust(network: nn.Module, pair: Pair, x: Tensor, y: Tensor) -> list[int]:
    """Samples that torchattacks leaves right, by budget; right when clean, as ours are counted."""
    with torch.no_grad():
        right = network(x).argmax(dim=1) == y
    left = []
    for budget in pair.budgets:
        x_adv = pair.theirs(network, budget)(x, y)
        with torch.no_grad():
            left.append(int((right & (network(x_adv).argmax(dim=1) == y)).sum()))
    return left


def _pairs() -> tuple[Pair, ...]:
    preset = {"preset": "torchattacks"}
    return (
        Pair(
            "pgd",
            BUDGETS[:1],
            IMAGES,
            _each("pgd-linf", BUDGETS[:1], steps=STEPS),
            lambda model, eps: torchattacks.PGD(model, eps=eps, steps=STEPS),
        ),
        Pair(
            "apgd",
            BUDGETS[1:3],
            IMAGES,
            _each("apgd-ce-linf", BUDGETS[1:3], **preset),
            lambda model, eps: torchattacks.APGD(model, eps=eps),
        ),
        Pair(
            "fab",
            BUDGETS,
            IMAGES // 4,
            _together("fab-t-linf", BUDGETS, **preset),
            lambda model, eps: torchattacks.FAB(model, eps=eps, multi_targeted=True),
        ),
        Pair(
            "square",
            BUDGETS[1:2],
            IMAGES // 2,
            _each("square-linf", BUDGETS[1:2], **preset, queries=QUERIES),
            lambda model, eps: torchattacks.Square(model, eps=eps, n_queries=QUERIES),
        ),
        Pair(
            "autoattack",
            BUDGETS[1:2],
            IMAGES // 4,
            _each("autoattack-linf", BUDGETS[1:2], **preset, queries=QUERIES),
            _autoattack,
        ),
    )


def _attack(name: str, params: dict[str, Any]) -> Attack[Any]:
    made: Attack[Any] = ATTACKS.load(name)(
        ATTACKS.resolve(PluginRef(name=name, params=params)), seed=0
    )
    return made


def _each(
    name: str, budgets: tuple[float, ...], **params: Any
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    attack = _attack(name, params)
    return lambda model, x, y: torch.stack(
        [attack(model, x, y, radius=budget).worst for budget in budgets]
    )


def _together(
    name: str, budgets: tuple[float, ...], **params: Any
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    attack = _attack(name, params)

    def run_together(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        ids = torch.arange(len(x), device=x.device)
        outcomes = attack.at_budgets(model, x, y, radii=list(budgets), ids=ids)
        return torch.stack([outcome.worst for outcome in outcomes])

    return run_together


def _autoattack(model: nn.Module, eps: float) -> Any:
    attack = torchattacks.AutoAttack(model, eps=eps, n_classes=FACTS.classes, seed=0)
    attack._autoattack.attacks[-1].n_queries = QUERIES
    return attack


def _trained(device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
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


def _now() -> float:
    """Seconds; on a CPU those that the process itself computed, whatever else the machine does."""
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
