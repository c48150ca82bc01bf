"""FAB against closed forms, against linear programming and against torchattacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from overproof.core.threat import Norm
from overproof.ml.attack.fab import step_to_plane
from tests.ml.oracles import flags
from tests.ml.victims import FewClasses, Scaled, an_attack, digits_victim, linear_problem


def planes(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points, normals and values of 30 hyperplanes, some out of reach of the box."""
    generator = torch.Generator().manual_seed(seed)
    point = torch.rand(30, 1, 2, 4, generator=generator)
    point[0] = (point[0] > 0.5).float()  # a corner
    normal = torch.randn(30, 1, 2, 4, generator=generator)
    normal[1, 0, 0] = 0.0
    value = 2.0 * torch.randn(30, generator=generator)
    value[2], value[3] = 0.0, 1e3
    return point, normal, value


def shortest_by_linear_programming(point: Tensor, normal: Tensor, value: float) -> float | None:
    """Smallest t with |d| <= t, <normal, d> = -value and point + d in the box, if there is one."""
    size = len(point)
    eye = np.eye(size)
    bound = np.ones((size, 1))
    solved = linprog(
        c=[0.0] * size + [1.0],
        A_ub=np.vstack([np.hstack([eye, -bound]), np.hstack([-eye, -bound])]),
        b_ub=np.zeros(2 * size),
        A_eq=[[*normal.tolist(), 0.0]],
        b_eq=[-value],
        bounds=[(-v, 1.0 - v) for v in point.tolist()] + [(0.0, None)],
    )
    return float(solved.x[-1]) if solved.success else None


def test_step_in_linf_is_as_short_as_linear_programming_finds() -> None:
    point, normal, value = planes(0)

    step = step_to_plane(point, normal, value, Norm.LINF)

    moved = point + step
    left = value + (normal * step).flatten(1).sum(dim=1)
    assert -1e-6 <= float(moved.min()) <= float(moved.max()) <= 1 + 1e-6
    reached = 0
    for i in range(30):
        shortest = shortest_by_linear_programming(
            point[i].flatten().double(), normal[i].flatten().double(), float(value[i])
        )
        if shortest is None:  # then as near as the box allows
            corner = torch.where(normal[i] * value[i].sign() > 0, 0.0, 1.0)
            free = normal[i] != 0
            assert torch.allclose(moved[i][free], corner[free], atol=1e-6)
        else:
            reached += 1
            assert abs(float(left[i])) <= 1e-5
            assert float(step[i].abs().max()) == pytest.approx(shortest, abs=1e-5)
    assert 15 <= reached < 30


def test_step_in_l2_lies_on_the_plane_and_no_other_is_shorter() -> None:
    point, normal, value = planes(1)

    step = step_to_plane(point, normal, value, Norm.L2)

    moved = point + step
    left = value + (normal * step).flatten(1).sum(dim=1)
    on_plane = left.abs() <= 1e-5
    assert -1e-6 <= float(moved.min()) <= float(moved.max()) <= 1 + 1e-6
    assert 15 <= int(on_plane.sum()) < 30
    # A shorter one would lie on the way to some other point of plane and box: there is none, since
    # along the plane the length grows in every direction that the box leaves open.
    generator = torch.Generator().manual_seed(2)
    for _ in range(300):
        noise = 0.1 * torch.randn(point.shape, generator=generator)
        along = (noise * normal).flatten(1).sum(dim=1) / normal.flatten(1).square().sum(dim=1)
        other = step + noise - along.view(-1, 1, 1, 1) * normal
        inside = ((point + other).clamp(0, 1) == point + other).flatten(1).all(dim=1) & on_plane
        assert bool(
            (other.flatten(1).norm(dim=1) >= step.flatten(1).norm(dim=1) - 1e-5)[inside].all()
        )


@pytest.mark.parametrize(
    ("name", "order"), [("fab-linf", 1), ("fab-t-linf", 1), ("fab-l2", 2), ("fab-t-l2", 2)]
)
def test_distance_on_a_linear_network_is_the_gap_over_the_dual_norm(name: str, order: int) -> None:
    model, x, y = linear_problem(classes=4)
    logits = model(x).detach()
    gaps = logits.gather(1, y.view(-1, 1)) - logits
    duals = (model.weight[y][:, None] - model.weight[None]).detach().norm(p=order, dim=2)
    reach = (gaps / duals).masked_fill(torch.eye(4, dtype=torch.bool)[y], torch.inf).amin(dim=1)

    one_step = an_attack(name, steps=1)(model, x, y, radius=0.0)
    many = an_attack(name, steps=20)(model, x, y, radius=0.0)

    assert torch.allclose(one_step.nearest, 1.05 * reach, rtol=1e-3)
    assert bool((many.nearest >= reach * 0.999).all())
    assert bool((many.nearest <= reach * 1.02).all())


@pytest.mark.parametrize("targeted", [False, True])
def test_flags_are_those_of_torchattacks(targeted: bool) -> None:
    network, x, y = digits_victim()
    radius, name = 28 / 255, "fab-t-linf" if targeted else "fab-linf"
    parameters = {"steps": 10, "targets": 4} if targeted else {"steps": 10}

    theirs = flags(name, network, x, y, radius, **parameters)
    ours = an_attack(name, **parameters)(network, x, y, radius=radius)

    assert int((ours.worst != theirs).sum()) <= 2
    assert 0.1 < float(theirs.float().mean()) < 0.8


def test_one_run_without_a_budget_gives_the_flags_at_every_budget() -> None:
    network, x, y = digits_victim()
    attack = an_attack("fab-t-linf", steps=10, targets=3)

    nearest = attack(network, x, y, radius=0.0).nearest

    for radius in (8 / 255, 20 / 255, 36 / 255):
        outcome = attack(network, x, y, radius=radius)
        assert torch.equal(outcome.worst, nearest > radius + 1e-6)


def test_image_that_is_too_far_is_not_returned() -> None:
    network, x, y = digits_victim()

    outcome = an_attack("fab-t-linf", steps=5, targets=2)(network, x, y, radius=20 / 255)

    assert bool((outcome.distance <= 20 / 255 + 1e-6).all())
    assert torch.equal(outcome.adversarial[outcome.worst], x[outcome.worst])
    beyond = outcome.nearest[outcome.worst]
    assert bool((beyond > 20 / 255).all())
    assert bool(beyond.isfinite().any())


def test_batches_and_order_change_no_distance() -> None:
    network, x, y = digits_victim()
    attack, ids = an_attack("fab-t-linf", steps=8, targets=2), torch.arange(len(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))

    whole = attack(network, x, y, radius=16 / 255)
    apart = [
        attack(network, x[rows], y[rows], radius=16 / 255, ids=ids[rows])
        for rows in torch.split(order, 33)
    ]

    assert torch.equal(whole.worst[order], torch.cat([each.worst for each in apart]))
    assert torch.allclose(
        whole.nearest[order], torch.cat([each.nearest for each in apart]), atol=1e-4
    )


def test_scale_of_the_logits_changes_nothing() -> None:
    network, x, y = digits_victim()
    attack = an_attack("fab-t-linf", steps=6, targets=2)

    quiet = attack(network, x, y, radius=28 / 255)
    loud = attack(Scaled(network, 1e4), x, y, radius=28 / 255)

    assert int((quiet.worst != loud.worst).sum()) <= 2


def test_two_classes_have_one_boundary() -> None:
    network, x, y = digits_victim()
    rows = y < 2
    model = FewClasses(network, 2)

    untargeted = an_attack("fab-linf", steps=8)(model, x[rows], y[rows], radius=0.2)
    targeted = an_attack("fab-t-linf", steps=8)(model, x[rows], y[rows], radius=0.2)

    assert torch.equal(untargeted.worst, targeted.worst)
    assert not bool(untargeted.worst.all())


def test_restarts_begin_inside_half_of_the_budget_and_only_ever_break_more() -> None:
    network, x, y = digits_victim()

    once = an_attack("fab-linf", steps=4)(network, x[:60], y[:60], radius=24 / 255)
    twice = an_attack("fab-linf", steps=4, restarts=2)(network, x[:60], y[:60], radius=24 / 255)

    assert not bool((twice.worst & ~once.worst).any())
    assert twice.backward_passes > once.backward_passes
