"""Networks, images and labels that attacks take as they are, or refuse with one line."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overproof.catalog.gradient_attacks import BimParams, L2CwParams, LinfCwParams
from overproof.errors import ShapeError
from overproof.ml.attack.base import Attack, AttackOutcome
from overproof.ml.attack.cw import L2CarliniWagner, LinfCarliniWagner
from overproof.ml.attack.noise import uniform_noise
from overproof.ml.attack.pgd import LinfBasicIterative

RADIUS = 0.05
ATTACK = LinfBasicIterative(BimParams(steps=2), seed=0)


def images(count: int = 6, shape: tuple[int, ...] = (3, 8, 8)) -> Tensor:
    return uniform_noise(torch.arange(count), shape, 1)


def labels(count: int = 6) -> Tensor:
    return torch.arange(count) % 4


class Small(nn.Module):
    """A convolution, a norm of the batch and a linear layer on the mean; its output is wrapped."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
            self.head = nn.Linear(4, 4)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.head(self.layers(x).mean(dim=(2, 3))))


def outcome_of(model: nn.Module, **over: Any) -> AttackOutcome:
    inputs: dict[str, Any] = {"x": images(), "y": labels(), "radius": RADIUS}
    return ATTACK(model, **(inputs | over))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, "features"),
        lambda logits: [logits],
        lambda logits: {"logits": logits, "loss": None},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["tuple", "list", "mapping", "object"],
)
def test_logits_are_found_in_what_a_network_returns(wrap: Callable[[Tensor], Any]) -> None:
    assert torch.equal(outcome_of(Small(wrap)).adversarial, outcome_of(Small()).adversarial)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"scores": logits},
        lambda logits: logits.argmax(dim=1),
        lambda logits: logits[:1],
        lambda logits: None,
    ],
    ids=["no logits", "classes", "one row", "nothing"],
)
def test_output_without_logits_is_refused(wrap: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ShapeError, match=r"must return logits \(6, K\)"):
        outcome_of(Small(wrap))


@pytest.mark.parametrize(
    "y",
    [
        labels().int(),
        labels().to(torch.uint8),
        torch.eye(4)[labels()],
        torch.eye(4, dtype=torch.bool)[labels()],
    ],
    ids=["int32", "uint8", "one-hot", "boolean one-hot"],
)
def test_labels_of_other_kinds_mean_the_same(y: Tensor) -> None:
    assert torch.equal(outcome_of(Small(), y=y).worst, outcome_of(Small()).worst)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (labels() + 1, ValueError, r"labels must lie in 0 … 3, not 1 … 4"),
        (labels() - 1, ValueError, r"labels must lie in 0 … 3, not -1 … 2"),
        (labels().float(), ShapeError, r"\(6,\) class indices, not \(6,\) torch.float32"),
        (torch.full((6, 4), 0.25), ShapeError, "one-hot"),
        (labels(5), ShapeError, r"must be \(6,\)"),
    ],
    ids=["too large", "negative", "floating", "soft", "too few"],
)
def test_unusable_labels_are_refused(y: Tensor, error: type[Exception], message: str) -> None:
    for attack in (ATTACK, LinfCarliniWagner(LinfCwParams(), seed=0)):
        with pytest.raises(error, match=message):
            attack(Small(), images(), y, radius=RADIUS)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ((images() * 255).to(torch.uint8), ShapeError, "divide by 255"),
        (images() * 255, ValueError, r"must lie in \[0, 1\]"),
        ((images() - 0.5) / 0.25, ValueError, r"must lie in \[0, 1\]"),
        (images()[0], ShapeError, r"must be \(B, C, H, W\)"),
    ],
    ids=["bytes", "0 to 255", "normalised", "one image"],
)
def test_unusable_images_are_refused(x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        outcome_of(Small(), x=x)


@pytest.mark.parametrize("shape", [(3, 5, 9), (3, 3, 3)])
@pytest.mark.parametrize("count", [1, 5])
def test_images_of_any_size_and_batches_of_one_work(count: int, shape: tuple[int, ...]) -> None:
    outcome = outcome_of(Small(), x=images(count, shape), y=labels(count))

    assert outcome.adversarial.shape == (count, *shape)


@pytest.mark.parametrize("attack", [ATTACK, L2CarliniWagner(L2CwParams(steps=3), seed=0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_network_in_half_precision_is_judged_in_its_own(
    attack: Attack[Any], dtype: torch.dtype
) -> None:
    model = Small().to(dtype).eval()

    outcome = attack(model, images(), labels(), radius=RADIUS)

    assert outcome.adversarial.dtype == torch.float32
    logits = model(outcome.adversarial.to(dtype))
    assert torch.equal(outcome.prediction, logits.float().argmax(dim=1))


def test_images_in_double_precision_become_adversarials_in_single() -> None:
    outcome = outcome_of(Small(), x=images().double())

    assert outcome.adversarial.dtype == torch.float32
    assert torch.equal(outcome.adversarial, outcome_of(Small()).adversarial)


def test_statistics_of_a_network_left_in_training_mode_do_not_move() -> None:
    model = Small().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    outcome = outcome_of(model)

    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(outcome.adversarial, outcome_of(Small().eval()).adversarial)
