"""APGD against hand-derived cases and against torchattacks with the same starts."""

from __future__ import annotations

import pytest
import torch

from overproof.errors import ShapeError
from overproof.ml.attack.apgd import checkpoints
from overproof.ml.attack.losses import dlr, likeliest_wrong, margin, targeted_dlr
from tests.ml.oracles import flags
from tests.ml.victims import FewClasses, Scaled, an_attack, digits_victim, linear_problem


def test_checkpoints_of_a_hundred_and_of_ten_steps() -> None:
    assert list(checkpoints(100)) == [21, 40, 56, 69, 79, 86, 92, 98]
    assert checkpoints(100)[21] == 22
    assert checkpoints(100)[98] == 6
    assert list(checkpoints(10)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(checkpoints(1)) == [0]


def test_losses_of_a_row_by_hand() -> None:
    logits, y = torch.tensor([[5.0, 1.0, 3.0, -1.0]]), torch.tensor([0])

    assert margin(logits, y).tolist() == [-2.0]
    assert dlr(logits, y).tolist() == pytest.approx([-2.0 / 4.0])
    # Towards class 3: -(5 + 1) over 5 - (1 - 1) / 2.
    assert targeted_dlr(logits, y, torch.tensor([3])).tolist() == pytest.approx([-6.0 / 5.0])
    assert likeliest_wrong(logits, y, 9).tolist() == [[2, 1, 3]]
    assert likeliest_wrong(logits, y, 2).tolist() == [[2, 1]]


@pytest.mark.parametrize(("name", "order"), [("apgd-ce-linf", 1), ("apgd-ce-l2", 2)])
def test_linear_network_falls_exactly_where_the_ball_reaches_the_boundary(
    name: str, order: int
) -> None:
    model, x, y = linear_problem(classes=2)
    gap = (model(x)[:, 0] - model(x)[:, 1]).abs().detach()
    reach = gap / (model.weight[0] - model.weight[1]).detach().norm(p=order)

    attack = an_attack(name, steps=10)
    below = attack(model, x, y, radius=reach * 0.999)
    above = attack(model, x, y, radius=reach * 1.001)

    assert bool(below.worst.all())
    assert not bool(above.worst.any())


@pytest.mark.parametrize("steps", [10, 60])
@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_same_starts_give_the_flags_of_torchattacks(loss: str, steps: int) -> None:
    network, x, y = digits_victim()

    theirs = flags(f"apgd-{loss}-linf", network, x, y, 32 / 255, steps=steps)
    ours = an_attack(f"apgd-{loss}-linf", steps=steps)(network, x, y, radius=32 / 255)

    assert int((ours.worst != theirs).sum()) <= 2
    assert 0.05 < float(theirs.float().mean()) < 0.6


def test_targeted_with_same_starts_gives_the_flags_of_torchattacks() -> None:
    network, x, y = digits_victim()

    theirs = flags("apgd-t-linf", network, x, y, 24 / 255, preset="torchattacks")
    ours = an_attack("apgd-t-linf", preset="torchattacks")(network, x, y, radius=24 / 255)

    assert int((ours.worst != theirs).sum()) <= 2
    assert 0.1 < float(theirs.float().mean()) < 0.8


@pytest.mark.parametrize("name", ["apgd-ce-linf", "apgd-t-linf", "apgd-dlr-l2"])
def test_batches_and_order_change_no_flag(name: str) -> None:
    network, x, y = digits_victim()
    attack, radius, ids = an_attack(name, steps=12), 28 / 255, torch.arange(len(x))
    if name.endswith("l2"):
        radius = 0.5
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))

    whole = attack(network, x, y, radius=radius).worst
    apart = torch.cat(
        [
            attack(network, x[rows], y[rows], radius=radius, ids=ids[rows]).worst
            for rows in torch.split(order, 33)
        ]
    )

    assert torch.equal(whole[order], apart)


def test_restarts_only_ever_break_more() -> None:
    network, x, y = digits_victim()

    once = an_attack("apgd-dlr-linf", steps=10)(network, x, y, radius=24 / 255)
    thrice = an_attack("apgd-dlr-linf", steps=10, restarts=3)(network, x, y, radius=24 / 255)

    assert not bool((thrice.worst & ~once.worst).any())
    assert int(thrice.worst.sum()) < int(once.worst.sum())
    assert thrice.forward_passes > once.forward_passes


def test_dlr_does_not_care_about_the_scale_of_logits_that_blinds_the_cross_entropy() -> None:
    network, x, y = digits_victim()
    loud = Scaled(network, 1e4)

    quiet_dlr = an_attack("apgd-dlr-linf", steps=10)(network, x, y, radius=32 / 255)
    loud_dlr = an_attack("apgd-dlr-linf", steps=10)(loud, x, y, radius=32 / 255)
    loud_ce = an_attack("apgd-ce-linf", steps=10)(loud, x, y, radius=32 / 255)

    assert int((loud_dlr.worst != quiet_dlr.worst).sum()) <= 2
    assert not bool(loud_dlr.flat.any())
    assert int(loud_ce.flat.sum()) > 100
    assert int(loud_ce.worst.sum()) > 2 * int(loud_dlr.worst.sum())


@pytest.mark.parametrize(
    ("name", "classes", "fewest"), [("apgd-dlr-linf", 2, 3), ("apgd-t-linf", 3, 4)]
)
def test_too_few_classes_for_the_loss_are_refused(name: str, classes: int, fewest: int) -> None:
    network, x, y = digits_victim()
    rows = y < classes

    with pytest.raises(ShapeError, match=f"needs at least {fewest} classes, the victim has"):
        an_attack(name)(FewClasses(network, classes), x[rows], y[rows], radius=0.1)


def test_mean_over_draws_of_a_network_without_noise_is_one_draw() -> None:
    network, x, y = digits_victim()

    once = an_attack("apgd-ce-linf", steps=5)(network, x[:30], y[:30], radius=0.1)
    mean = an_attack("apgd-ce-linf", steps=5, eot_iterations=4)(network, x[:30], y[:30], radius=0.1)

    assert torch.equal(once.worst, mean.worst)
    assert mean.backward_passes == 4 * once.backward_passes


def test_presets_are_the_numbers_of_both_implementations() -> None:
    official, other = an_attack("apgd-t"), an_attack("apgd-t", preset="torchattacks")
    mixed = an_attack("apgd-t", preset="torchattacks", steps=20)

    assert (official.params.steps, official.params.targets) == (100, 9)
    assert (other.params.steps, other.params.targets) == (10, None)
    assert (mixed.params.steps, mixed.params.targets) == (20, None)
