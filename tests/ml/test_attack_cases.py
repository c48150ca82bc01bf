"""Every attack against the stored value of another implementation."""

from __future__ import annotations

import pytest
import torch

from overproof.catalog.attacks import ATTACKS, attack
from overproof.core.threat import Norm
from tests.ml.attack_cases import CASES, Stored, load
from tests.ml.victims import an_attack


@pytest.fixture(scope="module")
def stored() -> Stored:
    return load()


def test_every_attack_has_a_stored_case_as_the_script_would_make_it(stored: Stored) -> None:
    assert sorted(CASES) == ATTACKS.names()
    assert stored.cases == CASES
    assert sorted(stored.robust) == ATTACKS.names()
    assert set(stored.images) == {name for name, case in CASES.items() if case.images}


def test_network_of_the_cases_is_worth_attacking(stored: Stored) -> None:
    right = stored.network(stored.x).argmax(dim=1) == stored.y

    assert float(right.float().mean()) > 0.85


@pytest.mark.parametrize("name", CASES)
def test_flags_are_those_of_the_other_implementation(name: str, stored: Stored) -> None:
    case = CASES[name]

    ours = an_attack(name, **case.params)(stored.network, stored.x, stored.y, radius=case.radius)

    # One flag may hang on a rounding, which differs from processor to processor.
    assert int((ours.worst != stored.robust[name]).sum()) <= 1
    clean = ours.clean_prediction == stored.y
    assert int(stored.robust[name].sum()) < int(clean.sum()) - 5


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.images])
def test_images_are_those_of_the_other_implementation(name: str, stored: Stored) -> None:
    case, theirs = CASES[name], stored.images[name]
    x, y = stored.x[: len(theirs)], stored.y[: len(theirs)]

    ours = an_attack(name, **case.params)(stored.network, x, y, radius=case.radius)

    # Of images that they do not break, these return the clean one.
    only_broken = name in ("cw-l2", "deepfool-l2", "square-linf", "square-l2")
    kept = ~ours.worst if only_broken else torch.ones_like(ours.worst)
    assert int(kept.sum()) >= 3
    # In L2 steps are as long as gradients are, so roundings add up.
    tolerance = 1e-5 if attack(name).norm is Norm.LINF else 2e-4
    assert torch.allclose(ours.adversarial[kept], theirs[kept], atol=tolerance)
