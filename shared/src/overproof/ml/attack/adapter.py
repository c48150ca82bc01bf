"""Attacks of the package torchattacks behind our judge: an oracle, and a source of more attacks."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, ClassVar

import torch
import torchattacks
from torch import Tensor, nn

from overproof.catalog.torchattacks_adapter import TorchattacksParams
from overproof.core.threat import Norm
from overproof.errors import InvalidSpec
from overproof.ml.attack.base import Attack
from overproof.ml.attack.victim import Victim

# What the adapter decides: the budget, the network and its classes, and the seed.
_OURS = frozenset({"self", "model", "eps", "seed", "n_classes"})


class LinfTorchattacks(Attack[TorchattacksParams]):
    """An attack of torchattacks by its class name; only the image that it returns is judged.

    Its random draws come from one generator for the whole batch, seeded for each budget: unlike
    our own attacks, its results depend on the batch that an image is in. Attacks without `eps`
    (CW, DeepFool) choose their own distance, and what is too far is projected to the ball.

    Source: Harry24k/adversarial-attacks-pytorch.

    Raises:
        InvalidSpec: torchattacks has no such attack, or the attack no such parameter.
    """

    def __init__(self, params: TorchattacksParams, *, seed: int) -> None:
        super().__init__(params, seed=seed)
        self._class = _attack_class(params.attack)
        known = inspect.signature(self._class.__init__).parameters
        self._accepts = frozenset(known)
        _refuse_unknown(params, sorted(set(known) - _OURS))

    def perturb(self, victim: Victim, x: Tensor, radius: Tensor, ids: Tensor) -> Tensor:
        """What the attack returns, budget by budget."""
        x_adv = x.clone()
        for budget in torch.unique(radius).tolist():
            rows = (radius == budget).nonzero().view(-1)
            part = victim.subset(rows)
            # The package draws from the global generator; it is put back as it was.
            devices = [x.device] if x.device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                torch.manual_seed(self.seed)
                attack = self._made(part.network(), budget, part.classes, x.device)
                x_adv[rows] = attack(x[rows], part.labels).detach()
        return x_adv

    def _made(self, network: nn.Module, budget: float, classes: int, device: torch.device) -> Any:
        fixed = {"eps": budget, "seed": self.seed, "n_classes": classes}
        given = {name: value for name, value in fixed.items() if name in self._accepts}
        attack = self._class(network.eval(), **given, **self.params.settings)
        attack.set_device(device)
        return attack


class L2Torchattacks(LinfTorchattacks):
    """As above, for attacks that are bounded in L2."""

    norm: ClassVar[Norm] = Norm.L2


def _attack_class(name: str) -> Any:
    base = torchattacks.attack.Attack
    known = [
        each
        for each, value in vars(torchattacks).items()
        if inspect.isclass(value) and issubclass(value, base) and "model" in _arguments(value)
    ]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
        raise InvalidSpec([f"attack: torchattacks has no {name!r}; {hint}"], source="torchattacks")
    return getattr(torchattacks, name)


def _arguments(attack: Any) -> list[str]:
    return list(inspect.signature(attack.__init__).parameters)


def _refuse_unknown(params: TorchattacksParams, known: list[str]) -> None:
    faults = [
        f"{name}: {params.attack} has no such parameter; known: {', '.join(known)}"
        for name in params.settings
        if name not in known
    ]
    if faults:
        raise InvalidSpec(faults, source="torchattacks")
