"""One stored case for each attack: what another implementation made of real digits.

`tests/data/attack_cases.safetensors` holds the weights of a small network, images, labels, and for
each attack the flags and images of torchattacks, foolbox or, for the CW of DD-RobustBench, of its
definition, all with our draws (`tests/ml/oracles.py`). Run as a program, this module writes it
again, which is only right when a case is added or a seed means other draws.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from tests.ml.oracles import adversarial, flags

FILE = Path(__file__).parents[1] / "data" / "attack_cases.safetensors"

_COUNT = 48  # images in the file
_SHOWN = 6  # of them, the first ones' adversarial images are kept
_TRAINED_ON = 1500


@dataclass(frozen=True)
class Case:
    """An attack with its parameters.

    Attributes:
        radius: the budget.
        params: that differ from the defaults of our attack.
        images: what the attack ends with is comparable, image by image: it keeps the last iterate
            or the nearest image. APGD, FAB and cascades keep other images than ours do.
    """

    radius: float
    params: dict[str, Any] = field(default_factory=dict)
    images: bool = True


_LINF, _L2 = 24 / 255, 0.6
_FEW: dict[str, Any] = {"steps": 10, "targets": 3}
_CASCADE: dict[str, Any] = {"steps": 5, "targets": 3, "queries": 40}
CASES = {
    "fgsm-linf": Case(_LINF),
    "bim-linf": Case(_LINF),
    "pgd-linf": Case(_LINF),
    "pgd-l2": Case(_L2),
    "cw-linf": Case(_LINF),
    "cw-l2": Case(1.0, {"steps": 40, "search_steps": 3, "learning_rate": 0.05}),
    "mi-fgsm-linf": Case(_LINF),
    "ni-fgsm-linf": Case(_LINF),
    "vmi-fgsm-linf": Case(_LINF),
    "jitter-linf": Case(32 / 255, {"steps": 4, "step_size": "8/255"}),
    "deepfool-l2": Case(0.7),
    "apgd-ce-linf": Case(_LINF, {"steps": 20}, images=False),
    "apgd-ce-l2": Case(_L2, {"steps": 20}, images=False),
    "apgd-dlr-linf": Case(_LINF, {"steps": 20}, images=False),
    "apgd-dlr-l2": Case(_L2, {"steps": 20}, images=False),
    "apgd-t-linf": Case(_LINF, _FEW, images=False),
    "apgd-t-l2": Case(_L2, _FEW, images=False),
    "fab-linf": Case(_LINF, {"steps": 10}, images=False),
    "fab-l2": Case(_L2, {"steps": 10}, images=False),
    "fab-t-linf": Case(_LINF, _FEW, images=False),
    "fab-t-l2": Case(_L2, _FEW, images=False),
    "square-linf": Case(40 / 255, {"queries": 80}),
    "square-l2": Case(1.2, {"queries": 80}),
    "autoattack-linf": Case(_LINF, _CASCADE, images=False),
    "autoattack-l2": Case(_L2, _CASCADE, images=False),
    "torchattacks-linf": Case(_LINF, {"attack": "FGSM"}),
    "torchattacks-l2": Case(_L2, {"attack": "PGDL2", "random_start": False}),
}


@dataclass(frozen=True)
class Stored:
    """What the file holds.

    Attributes:
        network: in eval mode.
        x: (B, 1, 8, 8) float32 in [0, 1].
        y: (B,) int64.
        cases: name of an attack → the case as it was when its value was made.
        robust: name of an attack → (B,) bool, what the other implementation left.
        images: name of an attack → the first of its images, where they are comparable.
    """

    network: nn.Module
    x: Tensor
    y: Tensor
    cases: dict[str, Case]
    robust: dict[str, Tensor]
    images: dict[str, Tensor]


def a_network() -> nn.Sequential:
    """1 × 8 × 8 pixels → 10 logits; of torch's own layers, so that no change of ours reaches it."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


def load() -> Stored:
    """The network, its images and the cases of the file."""
    network = a_network()
    with safe_open(FILE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        cases = json.loads(file.metadata()["cases"])
    network.load_state_dict(_below("network.", tensors))
    return Stored(
        network=network.eval().requires_grad_(False),
        x=tensors["images"].float() / 16,
        y=tensors["labels"],
        cases={name: Case(**case) for name, case in cases.items()},
        robust=_below("robust.", tensors),
        images=_below("adversarial.", tensors),
    )


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def main() -> None:
    """Train the network, let the other implementations attack it, and write the file."""
    torch.set_num_threads(1)
    images, labels = _digits()
    network = _trained(images[:_TRAINED_ON], labels[:_TRAINED_ON])
    kept = slice(_TRAINED_ON, _TRAINED_ON + _COUNT)
    x, y = images[kept], labels[kept]
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {"images": (x * 16).to(torch.uint8), "labels": y}
    for name, case in CASES.items():
        tensors[f"robust.{name}"] = flags(name, network, x, y, case.radius, **case.params)
        if case.images:
            made = adversarial(name, network, x, y, case.radius, **case.params)
            tensors[f"adversarial.{name}"] = made[:_SHOWN].detach()
    cases = json.dumps({name: asdict(case) for name, case in CASES.items()})
    save_file({k: v.contiguous() for k, v in tensors.items()}, FILE, metadata={"cases": cases})


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(labels).long()


def _trained(x: Tensor, y: Tensor) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = a_network()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
        for _ in range(30):
            for rows in torch.split(torch.randperm(len(x)), 50):
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(x[rows]), y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return network.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
