"""Steps of the distillation cores beside the published loops, with the memory of each.

The same process, network and images; seconds in turns. Memory is that of a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import naive_distillation as naive
from benchmarks.record import Record
from overproof.core.spec import DatasetSpec, PluginRef
from overproof.ml.augment import dsa
from overproof.ml.datasets.base import load
from overproof.ml.devices import device_facts, pick_device
from overproof.ml.distill.base import Problem
from overproof.ml.distill.distances import layerwise_cosine
from overproof.ml.distill.distribution_matching import matching_gradient
from overproof.ml.distill.gradient_core import GradientCore
from overproof.ml.distill.passes import RealPasses
from overproof.ml.distill.trajectory import FlatNetwork, InnerStep, Lesson, match
from overproof.ml.seeding import generator

PREFIX = "distill"

SIZE = (3, 32, 32)
REAL, TILES = 256, 4  # real images of a class; images on a canvas of IDM
IMAGES = 10  # synthetic images of a class
INNER_STEPS = 10
ITERATIONS = 20_000  # of a published run, for which compiling pays
ROUNDS = 2


@dataclass(frozen=True)
class Case:
    """The same step here and there.

    Attributes:
        ours, theirs: do it.
        facts: sizes, and how ours is computed.
    """

    ours: Callable[[], object]
    theirs: Callable[[], object]
    facts: Callable[[], dict[str, Any]]


def run() -> list[Record]:
    """Seconds of a step; facts tell the peak of memory above that of its inputs."""
    return [_measured(name) for name in CASES]


def _measured(name: str) -> Record:
    device = pick_device()
    case = CASES[name](device)
    first_s = _seconds(case.ours, device)
    _seconds(case.theirs, device)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_seconds(case.theirs, device))
        ours.append(_seconds(case.ours, device))
    facts = {
        **device_facts(device),
        "threads": torch.get_num_threads(),
        **case.facts(),
        "first_step_s": round(first_s, 2),
        "peak_mb": _peak(name, "ours"),
        "peak_mb_reference": _peak(name, "theirs"),
    }
    return Record(f"{PREFIX}.{name}", min(ours), "s", "published loop", min(theirs), facts=facts)


# ---- cases -----------------------------------------------------------------------------------


def _problem(device: torch.device, width: int) -> Problem:
    """Digits stand for the classes; images are drawn at random, which costs the same."""
    digits = load(DatasetSpec(name="digits", subset_per_class=2, test_subset_per_class=1), None)
    dataset = replace(
        digits,
        train_images=torch.zeros(20, *SIZE, dtype=torch.uint8),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )
    return Problem(
        dataset=dataset,
        network=PluginRef(name="convnet", params={"width": width, "depth": 3}),
        images_per_class=IMAGES,
        seed=0,
        device=device,
    )


def _images(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, *SIZE, generator=generator(0, "benchmark", *shape)).to(device)


def _classes(device: torch.device) -> int:
    # Each class costs the same; on a CPU two of them do.
    return 2 if device.type == "cpu" else 10


def _gradients(device: torch.device) -> Case:
    problem = _problem(device, width=128)
    network = problem.build("network").network
    classes = _classes(device)
    real, synthetic = _images(device, classes, REAL), _images(device, classes, IMAGES)
    core = GradientCore(
        problem,
        network,
        [name for name, each in network.named_parameters() if each.ndim > 1],
        layerwise_cosine,
        real_batch=REAL,
        synthetic_batch=IMAGES,
        steps=ITERATIONS,
    )
    return Case(
        ours=lambda: core.gradient(network, synthetic, lambda leaf, group: (real[group], leaf)),
        theirs=lambda: naive.gradient_matching(network, real, synthetic),
        facts=lambda: {"classes": classes, "real": REAL, "synthetic": IMAGES, **core.notes()},
    )


def _features(device: torch.device, *, entropy_weight: float | None, synthetic: int) -> Case:
    problem = _problem(device, width=128)
    network = problem.build("network").network.requires_grad_(False)
    classes = _classes(device)
    real, made = _images(device, classes, REAL), _images(device, classes, synthetic)
    passes = RealPasses(problem, network, images=ITERATIONS * problem.dataset.classes * REAL)
    weight = None if entropy_weight is None else torch.tensor(entropy_weight, device=device)
    at_once = max(1, problem.rows_at_once // (REAL + synthetic))
    return Case(
        ours=lambda: matching_gradient(
            network,
            made,
            lambda leaf, group: (real[group], leaf),
            passes,
            classes_at_once=at_once,
            entropy_weight=weight,
        ),
        theirs=lambda: naive.distribution_matching(network, real, made, entropy_weight),
        facts=lambda: {
            "classes": classes,
            "real": REAL,
            "synthetic": synthetic,
            "means": passes.means.value,
            "means_reason": passes.reason,
        },
    )


def _trajectories(device: torch.device) -> Case:
    problem = _problem(device, width=32)
    network = problem.build("network").network
    start = torch.cat([each.detach().flatten() for each in network.parameters()])
    goal = start + 0.01 * torch.randn(len(start), generator=generator(0, "benchmark", "goal")).to(
        device
    )
    images = _images(device, 10 * IMAGES)
    labels = (torch.arange(10 * IMAGES) // IMAGES).to(device)
    rate = torch.tensor(0.01, device=device)
    rows = torch.arange(len(images), device=device)
    plain = dsa.draw((), generator(0, "benchmark"), len(images), siamese=False)
    steps = [InnerStep(rows, plain)] * INNER_STEPS
    flat = FlatNetwork(problem.build("network").network)
    return Case(
        ours=lambda: match(flat, Lesson(images, labels), steps, start=start, goal=goal, rate=rate),
        theirs=lambda: naive.trajectory_matching(
            network, images, labels, [rows] * INNER_STEPS, start=start, goal=goal, rate=rate
        ),
        facts=lambda: {"inner_steps": INNER_STEPS, "images": len(images), "width": 32},
    )


CASES: dict[str, Callable[[torch.device], Case]] = {
    "gradient_matching": _gradients,
    "distribution_matching": lambda device: _features(
        device, entropy_weight=None, synthetic=IMAGES
    ),
    "improved_matching": lambda device: _features(
        device, entropy_weight=0.5, synthetic=TILES * IMAGES
    ),
    "trajectory_adjoint": _trajectories,
}


# ---- time and memory -------------------------------------------------------------------------


def _seconds(step: Callable[[], object], device: torch.device) -> float:
    """On a CPU those that the process itself computed, whatever else the machine does."""
    now = time.perf_counter if device.type == "cuda" else time.process_time
    began = now()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return now() - began


def _peak(name: str, side: str) -> int:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_here, name, side).result()


def _peak_here(name: str, side: str) -> int:
    """Megabytes that one step takes on top of what lies there before it."""
    device = pick_device()
    case = CASES[name](device)
    step = case.ours if side == "ours" else case.theirs
    if device.type == "cuda":
        step()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) // 2**20
    step()  # what compilers and libraries keep is there before
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _kilobytes("VmRSS")
    step()
    return (_kilobytes("VmHWM") - before) // 2**10


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1])
