"""Attacks of torchattacks behind our judge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchattacks

from overproof.errors import InvalidSpec
from tests.ml.victims import an_attack, digits_victim


def test_result_is_what_the_package_returns_and_global_random_state_is_left_alone() -> None:
    network, x, y = digits_victim()
    torch.manual_seed(7)
    theirs = torchattacks.PGD(network, eps=16 / 255, alpha=4 / 255, steps=5)(x, y)
    before = torch.random.get_rng_state()

    ours = an_attack("torchattacks", seed=7, attack="PGD", alpha=4 / 255, steps=5)(
        network, x, y, radius=16 / 255
    )

    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.allclose(ours.adversarial, theirs, atol=1e-6)
    assert torch.equal(ours.prediction, network(theirs).argmax(dim=1))
    # A step is a forward and a backward pass of each image; the judge adds one forward pass.
    assert (ours.forward_passes, ours.backward_passes) == (6 * len(x), 5 * len(x))


def test_each_budget_of_a_batch_is_its_own_run() -> None:
    network, x, y = digits_victim()
    x, y = x[:20], y[:20]
    attack = an_attack("torchattacks", attack="FGSM")

    both = attack(
        network,
        x.repeat(2, 1, 1, 1),
        y.repeat(2),
        radius=torch.tensor([0.02, 0.1]).repeat_interleave(20),
    )

    for i, radius in enumerate((0.02, 0.1)):
        alone = attack(network, x, y, radius=radius)
        assert torch.allclose(both.adversarial[20 * i : 20 * (i + 1)], alone.adversarial)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("torchattacks-linf", {"attack": "Square", "n_queries": 5}),
        ("torchattacks-linf", {"attack": "FAB", "steps": 2}),
        ("torchattacks-linf", {"attack": "APGDT", "steps": 2}),
        ("torchattacks-l2", {"attack": "PGDL2", "steps": 3}),
        ("torchattacks-l2", {"attack": "DeepFool", "steps": 3}),
        ("torchattacks-l2", {"attack": "CW", "steps": 3}),
    ],
)
def test_kinds_of_attacks_work_and_keep_the_budget(name: str, params: dict[str, Any]) -> None:
    network, x, y = digits_victim()

    outcome = an_attack(name, **params)(network, x[:12], y[:12], radius=0.3)

    assert float(outcome.distance.max()) <= 0.3 + 1e-6
    assert outcome.forward_passes > 12


def test_unknown_attack_names_its_neighbours() -> None:
    with pytest.raises(InvalidSpec, match=r"torchattacks has no 'PDG'; did you mean .*PGD"):
        an_attack("torchattacks", attack="PDG")


def test_unknown_parameter_names_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match="PGD has no such parameter; known: alpha, random_start"):
        an_attack("torchattacks", attack="PGD", step_size=0.1)


def test_budget_is_not_a_parameter() -> None:
    with pytest.raises(InvalidSpec, match="eps"):
        an_attack("torchattacks", attack="PGD", eps=0.1)
