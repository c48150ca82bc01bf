"""What attacks by projected gradient steps have in common: where they start and how they climb."""

from __future__ import annotations

import torch
from torch import Tensor

from overproof.core.threat import Norm
from overproof.ml.attack.ball import l2_norm, project
from overproof.ml.attack.noise import normal_noise, uniform_noise
from overproof.ml.attack.passes import Loss, cross_entropy_sum
from overproof.ml.attack.victim import Victim

# DD-RobustBench runs its attacks for 10 and for 5 steps; the longer run contains the shorter one.
SHORTER_RUNS = (5,)


def shorter_runs(steps: int) -> tuple[int, ...]:
    """The numbers of steps that a run of `steps` steps reports besides its own."""
    return tuple(shorter for shorter in SHORTER_RUNS if shorter < steps)


def random_start(
    x: Tensor, radius: Tensor, ids: Tensor, seed: int, *labels: str | int, norm: Norm
) -> Tensor:
    """A random point of the ball around each image, cut to the pixel box.

    L∞: uniform in the ball. L2: in a uniform direction, at a uniform share of the radius. The
    start follows from seed, image and labels, not from the radius: larger balls scale it.

    Args:
        x: (B, C, H, W) float32 in [0, 1].
        radius: (B,) float32.
        ids: (B,) int64, numbers of the samples.
        seed: of the attack.
        *labels: purpose and counters, as in `noise`.
        norm: of the ball.
    """
    bound = radius.view(-1, 1, 1, 1)
    shape = tuple(x.shape[1:])
    match norm:
        case Norm.LINF:
            offset = 2.0 * uniform_noise(ids, shape, seed, *labels) - 1.0
        case Norm.L2:
            share = uniform_noise(ids, (1, 1, 1), seed, *labels, "radius")
            offset = share * unit_l2(normal_noise(ids, shape, seed, *labels, "direction"))
    return (x + bound * offset).clamp(0.0, 1.0)


def ascend(
    victim: Victim,
    start: Tensor,
    x: Tensor,
    radius: Tensor,
    *,
    norm: Norm,
    steps: int,
    step_size: float,
    loss: Loss = cross_entropy_sum,
    done: int = 0,
) -> Tensor:
    """The last iterate of steepest ascent with projection after each step.

    Args:
        victim: the network under attack.
        start: (B, C, H, W), iterate number `done`.
        x: (B, C, H, W) float32 in [0, 1].
        radius: (B,) float32.
        norm: of the ball, and the one in which a step is steepest and `step_size` long.
        steps: number of the last iterate.
        step_size: in pixel units of [0, 1].
        loss: what is ascended.
        done: steps that led to `start`.
    """
    x_adv = start
    for step in range(done, steps):
        gradient = victim.gradient(x_adv, loss, step=step)
        x_adv = project(x_adv + step_size * steepest(gradient, norm), x, radius, norm)
    return x_adv


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of length 1 in `norm` along which a gradient grows most; 0 for a zero one."""
    match norm:
        case Norm.LINF:
            return gradient.sign()
        case Norm.L2:
            return unit_l2(gradient)


def unit_l2(delta: Tensor) -> Tensor:
    """Each image's values divided by their Euclidean norm; zero stays zero.

    They are scaled to a largest value of 1 first, so that tiny gradients do not vanish in squares.
    """
    largest = delta.abs().flatten(1).amax(dim=1).view(-1, 1, 1, 1)
    scaled = torch.where(largest > 0, delta / largest, 0.0)
    return scaled / l2_norm(scaled).clamp(min=1.0).view(-1, 1, 1, 1)
