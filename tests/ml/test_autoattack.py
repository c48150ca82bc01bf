"""AutoAttack: the cascade, its parts, few classes, and torchattacks with equal starts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from overproof.core.threat import Norm
from overproof.ml.attack.autoattack import L2AutoAttack, LinfAutoAttack
from overproof.ml.attack.record import TOLERANCE
from tests.ml.oracles import flags
from tests.ml.victims import FewClasses, an_attack, digits_victim, linear_problem

SHORT: dict[str, Any] = {"steps": 8, "targets": 3, "queries": 30}
RADIUS = 28 / 255


def cascade(**params: Any) -> LinfAutoAttack:
    made = an_attack("autoattack-linf", **SHORT | params)
    assert isinstance(made, LinfAutoAttack)
    return made


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("standard", ["apgd-ce", "apgd-t", "fab-t", "square"]),
        ("plus", ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]),
        ("rand", ["apgd-ce", "apgd-dlr"]),
    ],
)
def test_versions_have_the_parts_of_the_paper(version: str, names: list[str]) -> None:
    assert list(cascade(version=version).parts(classes=10)) == names


def test_presets_set_the_parts() -> None:
    official = an_attack("autoattack-linf")
    other = an_attack("autoattack-linf", preset="torchattacks")
    assert isinstance(official, LinfAutoAttack)
    assert isinstance(other, LinfAutoAttack)

    for attack, steps, targets, rescale in ((official, 100, 9, False), (other, 10, None, True)):
        parts = attack.parts(classes=10)
        assert [parts[name].params.steps for name in ("apgd-ce", "apgd-t", "fab-t")] == [steps] * 3
        assert [parts[name].params.targets for name in ("apgd-t", "fab-t")] == [targets] * 2
        assert parts["square"].params.queries == 5_000
        assert parts["square"].params.rescale_schedule is rescale
    plus = cascade(version="plus").parts(classes=10)
    assert [plus[name].params.restarts for name in plus] == [5, 5, 5, 1, 1, 1]
    rand = cascade(version="rand").parts(classes=10)
    assert [part.params.eot_iterations for part in rand.values()] == [20, 20]


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_each_part_alone_does_what_it_does_in_the_cascade(version: str) -> None:
    network, x, y = digits_victim()
    x, y = x[:80], y[:80]
    whole = cascade(version=version)

    outcome = whole(network, x, y, radius=RADIUS)

    clean = outcome.clean_prediction == y
    assert torch.equal(outcome.broken_by >= 0, clean & ~outcome.worst)
    for index, part in enumerate(whole.parts(classes=10).values()):
        reached = clean & ((outcome.broken_by >= index) | outcome.worst)
        alone = part(network, x, y, radius=RADIUS)
        assert torch.equal(~alone.worst[reached], outcome.broken_by[reached] == index)


@pytest.mark.parametrize(("norm", "radius"), [("linf", RADIUS), ("l2", 0.5)])
def test_same_draws_give_the_flags_of_torchattacks(norm: str, radius: float) -> None:
    network, x, y = digits_victim()
    x, y = x[::4], y[::4]
    params: dict[str, Any] = {"preset": "torchattacks", "queries": 40}

    theirs = flags(f"autoattack-{norm}", network, x, y, radius, **params)
    ours = an_attack(f"autoattack-{norm}", **params)(network, x, y, radius=radius)

    assert int((ours.worst != theirs).sum()) <= 1
    assert 5 < int(theirs.sum()) < 40


def test_batches_and_order_change_no_flag() -> None:
    network, x, y = digits_victim()
    attack, ids = cascade(), torch.arange(len(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))

    whole = attack(network, x, y, radius=RADIUS)
    apart = [
        attack(network, x[rows], y[rows], radius=RADIUS, ids=ids[rows])
        for rows in torch.split(order, 66)
    ]

    assert torch.equal(whole.worst[order], torch.cat([each.worst for each in apart]))
    assert torch.equal(whole.broken_by[order], torch.cat([each.broken_by for each in apart]))


def test_union_is_no_weaker_than_any_part_and_all_images_are_allowed() -> None:
    network, x, y = digits_victim()

    outcome = cascade()(network, x, y, radius=RADIUS)

    alone = an_attack("apgd-ce-linf", steps=8)(network, x, y, radius=RADIUS)
    assert not bool((outcome.worst & ~alone.worst).any())
    assert float(outcome.distance.max()) <= RADIUS + 1e-6
    assert 0.0 <= float(outcome.adversarial.min()) <= float(outcome.adversarial.max()) <= 1.0
    assert torch.equal(outcome.prediction == y, outcome.worst)


@pytest.mark.parametrize(
    ("classes", "version", "replaced"),
    [
        (2, "standard", ["apgd-t-margin"]),
        (2, "plus", ["apgd-margin", "apgd-t-margin"]),
        (2, "rand", ["apgd-margin"]),
        (3, "standard", ["apgd-t-margin"]),
        (3, "plus", ["apgd-t-margin"]),
        (3, "rand", []),
    ],
)
def test_few_classes_get_the_margin_instead_of_dlr_and_a_note(
    classes: int, version: str, replaced: list[str]
) -> None:
    network, x, y = digits_victim()
    rows = y < classes
    attack = cascade(version=version, steps=3)

    outcome = attack(FewClasses(network, classes), x[rows], y[rows], radius=0.25)

    assert [note.split()[0] for note in outcome.notes] == replaced
    assert set(replaced) <= set(attack.parts(classes))
    assert bool((outcome.broken_by >= 0).any())
    assert torch.equal(outcome.prediction == y[rows], outcome.worst)


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_l2_has_the_same_parts_in_l2(version: str) -> None:
    attack = an_attack("autoattack-l2", version=version, **SHORT)
    assert isinstance(attack, L2AutoAttack)

    for classes in (2, 3, 10):
        parts = attack.parts(classes)
        assert list(parts) == list(cascade(version=version).parts(classes))
        assert {part.norm for part in parts.values()} == {Norm.L2}


@pytest.mark.parametrize(("norm", "order"), [("linf", 1), ("l2", 2)])
@pytest.mark.parametrize(
    ("version", "classes"),
    # `rand` aims at no class, and with several the gradients of its losses mix them.
    [*product(["standard", "plus"], [2, 3, 5]), ("rand", 2)],
)
def test_linear_network_falls_exactly_where_the_ball_reaches_the_boundary(
    norm: str, order: int, version: str, classes: int
) -> None:
    model, x, y = linear_problem(classes=classes)
    logits = model(x).detach()
    gaps = logits.gather(1, y.view(-1, 1)) - logits
    duals = (model.weight[y][:, None] - model.weight[None]).detach().norm(p=order, dim=2)
    others = ~torch.eye(classes, dtype=torch.bool)[y]
    reach = torch.where(others, gaps / duals, torch.inf).amin(dim=1)
    attack = an_attack(f"autoattack-{norm}", version=version, **SHORT | {"steps": 20})

    # The judge's tolerance counts for an image that lies nearly on a boundary.
    below = attack(model, x, y, radius=(reach * 0.999 - 2 * TOLERANCE).clamp(min=0.0))
    above = attack(model, x, y, radius=reach * 1.01)

    assert bool(below.worst.all())
    assert not bool(above.worst.any())
