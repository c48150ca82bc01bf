"""Square against hand-derived cases and against torchattacks with the same draws."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torchattacks

from overproof.ml.attack.square import LinfSquare
from overproof.ml.attack.square_l2 import L2Square, bump
from tests.ml.oracles import adversarial, rows_of, with_our_squares
from tests.ml.victims import Scaled, an_attack, digits_victim, linear_problem

QUERIES = 120


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("queries", [100, 5_000])
def test_sides_of_squares_are_those_of_torchattacks(queries: int, rescale: bool) -> None:
    network, _, _ = digits_victim()
    oracle = torchattacks.Square(network, n_queries=queries, resc_schedule=rescale)
    ours = an_attack("square-linf", queries=queries, rescale_schedule=rescale)
    assert isinstance(ours, LinfSquare)

    for query in range(queries):
        share = oracle.p_selection(query)
        assert ours.side(query, 8, 8) == max(round((share * 8 * 8) ** 0.5), 1)
    assert ours.side(0, 4, 100) == 4  # never larger than the image


@pytest.mark.parametrize("preset", ["official", "torchattacks"])
@pytest.mark.parametrize(("name", "radius"), [("square-linf", 36 / 255), ("square-l2", 1.2)])
def test_same_draws_give_the_flags_and_images_of_torchattacks(
    name: str, radius: float, preset: str
) -> None:
    network, x, y = digits_victim()
    x, y = x[::8], y[::8]
    params: dict[str, Any] = {"preset": preset, "queries": QUERIES}

    theirs = adversarial(name, network, x, y, radius, **params)
    ours = an_attack(name, **params)(network, x, y, radius=radius)

    clean = network(x).argmax(dim=1) == y
    robust = clean & (network(theirs).argmax(dim=1) == y)
    fooled = clean & ~robust
    assert torch.equal(ours.worst, robust)
    assert 3 <= int(fooled.sum()) <= int(clean.sum()) - 3
    assert torch.allclose(ours.adversarial[fooled], theirs[fooled], atol=1e-4)


def test_draws_shared_by_the_batch_are_those_of_torchattacks() -> None:
    network, x, y = digits_victim()
    radius = 36 / 255
    oracle = torchattacks.Square(network, eps=radius, n_queries=300)
    with_our_squares(oracle, lambda part: rows_of(part, x), channels=1, drawn_for=0)
    oracle.rescale_schedule = False

    theirs = network(oracle(x, y)).argmax(dim=1) == y
    ours = an_attack("square-linf", queries=300, batch_shared_draws=True)(
        network, x, y, radius=radius
    )
    own = an_attack("square-linf", queries=300)(network, x, y, radius=radius)

    assert torch.equal(ours.worst, theirs)
    assert not torch.equal(ours.worst, own.worst)


@pytest.mark.parametrize(("name", "radius"), [("square-linf", 36 / 255), ("square-l2", 1.2)])
def test_shared_draws_depend_on_no_batch_either(name: str, radius: float) -> None:
    network, x, y = digits_victim()
    ids = torch.arange(len(x))
    attack = an_attack(name, queries=70, batch_shared_draws=True)

    whole = attack(network, x, y, radius=radius).worst
    parts = [
        attack(network, x[rows], y[rows], radius=radius, ids=rows).worst
        for rows in torch.split(ids, 70)
    ]

    assert torch.equal(whole, torch.cat(parts))


def test_bumps_lie_the_same_way_for_all_where_draws_are_shared() -> None:
    x = torch.full((4, 1, 10, 10), 0.5)
    attack = an_attack("square-l2", batch_shared_draws=True)
    assert isinstance(attack, L2Square)

    starts = attack._start(x, torch.full((4,), 0.1), torch.arange(4), 0) - x

    assert torch.allclose(starts.abs(), starts[:1].abs().expand_as(starts))
    assert len({start.numpy().tobytes() for start in starts}) == 4  # signs are their own


@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_bump_is_that_of_torchattacks(side: int) -> None:
    network, _, _ = digits_victim()
    oracle = torchattacks.Square(network, norm="L2")
    with patch.object(torch, "rand", lambda *_, **__: torch.tensor(0.0)):
        expected = oracle.__class__.eta(_on_cpu(oracle), side)

    assert torch.allclose(bump(side), expected, atol=1e-6)
    assert float(bump(side).norm()) == pytest.approx(1.0)


def _on_cpu(attack: Any) -> Any:
    attack.device = torch.device("cpu")
    return attack


def test_search_stays_on_the_corners_of_the_ball() -> None:
    model, x, y = linear_problem(classes=2)

    outcome = an_attack("square-linf", queries=1)(model, x, y, radius=0.3)

    hit = ~outcome.worst
    change = outcome.adversarial[hit] - x[hit]
    assert int(hit.sum()) > 5
    assert torch.allclose(change.abs(), torch.full_like(change, 0.3), atol=1e-6)


def test_many_queries_approach_the_closed_form_on_a_linear_network() -> None:
    model, x, y = linear_problem(classes=2)
    gap = (model(x)[:, 0] - model(x)[:, 1]).abs().detach()
    reach = gap / (model.weight[0] - model.weight[1]).detach().norm(p=1)

    below = an_attack("square-linf", queries=300)(model, x, y, radius=reach * 0.999)
    above = an_attack("square-linf", queries=300)(model, x, y, radius=(reach * 2.0).clamp(max=1.0))

    assert bool(below.worst.all())
    assert float(above.worst.float().mean()) < 0.3


def test_batches_and_order_change_nothing() -> None:
    network, x, y = digits_victim()
    attack, ids = an_attack("square-linf", queries=40), torch.arange(len(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))

    whole = attack(network, x, y, radius=36 / 255)
    apart = [
        attack(network, x[rows], y[rows], radius=36 / 255, ids=ids[rows])
        for rows in torch.split(order, 33)
    ]

    assert torch.equal(whole.worst[order], torch.cat([each.worst for each in apart]))
    assert torch.allclose(
        whole.adversarial[order], torch.cat([each.adversarial for each in apart]), atol=1e-6
    )


def test_gradients_are_never_asked_for_and_the_scale_of_logits_does_not_matter() -> None:
    network, x, y = digits_victim()
    attack = an_attack("square-linf", queries=40)

    quiet = attack(network, x, y, radius=36 / 255)
    loud = attack(Scaled(network, 1024.0), x, y, radius=36 / 255)

    assert quiet.backward_passes == loud.backward_passes == 0
    assert torch.equal(quiet.worst, loud.worst)
    assert not bool(quiet.flat.any())
