"""Square against hand-derived cases and against torchattacks with the same draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torchattacks
from torch import Tensor

from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.square import BLOCK, LinfSquare
from overproof.ml.attack.square_l2 import bump
from tests.ml.victims import Scaled, an_attack, digits_victim, linear_problem

QUERIES = 120


def with_our_draws(attack: Any, sample: int, channels: int) -> Any:
    """The attack of torchattacks on one image, with the stripes and squares of ours."""
    query, ids = -1, torch.tensor([sample])

    def draws() -> Tensor:
        block, place = divmod(query, BLOCK)
        shape = (BLOCK, 2 + channels)
        return uniform_noise(ids, shape, 0, "square", 0, block)[0, place]

    positions: list[Tensor] = []

    def random_int(low: int, high: int, shape: Any = None) -> Tensor:
        nonlocal query, positions
        if not positions:  # the row of a query comes before its column
            query += 1
            positions = [draws()[0], draws()[1]]
        return (low + (high - low) * positions.pop(0)).long()

    def random_choice(shape: Any) -> Tensor:
        if len(shape) == 4:  # the stripes
            return (2 * uniform_noise(ids, tuple(shape[1:]), 0, "square-start", 0) - 1).sign()
        return (2 * draws()[2:].view(shape) - 1).sign()

    attack.random_int, attack.random_choice = random_int, random_choice
    return attack


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
def test_same_draws_give_the_flags_and_images_of_torchattacks(preset: str) -> None:
    network, x, y = digits_victim()
    rows, radius = torch.arange(0, 200, 8), 36 / 255
    clean = network(x[rows]).argmax(dim=1) == y[rows]
    rows = rows[clean]

    theirs = []
    for row in rows.tolist():
        oracle = torchattacks.Square(
            network, eps=radius, n_queries=QUERIES, resc_schedule=preset == "torchattacks"
        )
        theirs.append(with_our_draws(oracle, row, 1)(x[row : row + 1], y[row : row + 1]))
    ours = an_attack("square-linf", preset=preset, queries=QUERIES)(
        network, x[rows], y[rows], radius=radius, ids=rows
    )

    images = torch.cat(theirs)
    robust = network(images).argmax(dim=1) == y[rows]
    assert torch.equal(ours.worst, robust)
    assert 3 <= int((~robust).sum()) <= len(rows) - 3
    assert torch.allclose(ours.adversarial[~robust], images[~robust], atol=1e-6)


@contextmanager
def our_l2_draws(attack: Any, sample: int, channels: int) -> Iterator[None]:
    """Inside, the attack of torchattacks on one 8 × 8 image takes the bumps and windows of ours."""
    ids = torch.tensor([sample])

    def numbers() -> Iterator[Tensor]:
        # In the order in which they are asked for: at first by tile, then by query.
        yield from uniform_noise(ids, (8, 8, 1 + channels), 0, "square-start", 0).flatten()
        for block in count():
            yield from uniform_noise(ids, (BLOCK, 5 + channels), 0, "square", 0, block).flatten()

    stream = numbers()

    def random_int(low: int, high: int, shape: Any = None) -> Tensor:
        return (low + (high - low) * next(stream)).long()

    def random_choice(shape: Any) -> Tensor:
        drawn = torch.stack([next(stream) for _ in range(channels)])
        return (2 * drawn - 1).sign().view(1, channels, 1, 1)

    attack.random_int, attack.random_choice = random_int, random_choice
    with patch.object(torch, "rand", lambda *_, **__: next(stream)):
        yield


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


def test_l2_with_same_draws_gives_the_flags_and_images_of_torchattacks() -> None:
    network, x, y = digits_victim()
    rows, radius = torch.arange(0, 200, 8), 1.2
    rows = rows[network(x[rows]).argmax(dim=1) == y[rows]]

    theirs = []
    for row in rows.tolist():
        oracle = torchattacks.Square(network, norm="L2", eps=radius, n_queries=QUERIES)
        with our_l2_draws(oracle, row, 1):
            theirs.append(oracle(x[row : row + 1], y[row : row + 1]))
    ours = an_attack("square-l2", preset="torchattacks", queries=QUERIES)(
        network, x[rows], y[rows], radius=radius, ids=rows
    )

    images = torch.cat(theirs)
    robust = network(images).argmax(dim=1) == y[rows]
    assert torch.equal(ours.worst, robust)
    assert 3 <= int((~robust).sum()) <= len(rows) - 3
    assert torch.allclose(ours.adversarial[~robust], images[~robust], atol=1e-4)


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
