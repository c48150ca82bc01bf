"""Values that are valid by default; a test changes the one field that it is about."""

from __future__ import annotations

from typing import Any

from overproof.core.spec import CellBody, DatasetSpec, ExperimentSpec, NetworkBody, PluginRef, Unit
from overproof.core.threat import Norm, ThreatModel
from overproof.experiments.units import make_unit

DIGITS = DatasetSpec(name="digits", version="bundled-1")


def no_added_datasets(name: str) -> str | None:
    """A store to which nobody has added a data set."""
    return None


def an_experiment(**over: Any) -> ExperimentSpec:
    """Random and DM at one size, one network, one attack at two budgets, two seeds."""
    values: dict[str, Any] = {
        "name": "tiny",
        "datasets": "digits",
        "methods": ["random", {"name": "dm", "params": {"iterations": 5, "real_batch": 16}}],
        "images_per_class": [1],
        "networks": [{"name": "convnet", "params": {"width": 8, "depth": 2}}],
        "protocol": {"name": "dc", "params": {"epochs": 3}},
        "attacks": [{"name": "fgsm", "epsilons": ["8/255", "16/255"]}],
        "seeds": [0, 1],
    }
    return ExperimentSpec.model_validate(values | over)


def a_network(seed: int = 0, **over: Any) -> Unit:
    """A network trained on the whole of digits."""
    values: dict[str, Any] = {
        "training_set": DIGITS,
        "test_set": DIGITS,
        "network": PluginRef(name="convnet", params={"width": 8, "depth": 2}),
        "protocol": PluginRef(name="dc", params={"epochs": 3}),
        "seed": seed,
    }
    return make_unit("networks", NetworkBody.model_validate(values | over))


def a_cell(victim: Unit, epsilon: str = "8/255", **over: Any) -> Unit:
    """FGSM on `victim`."""
    values: dict[str, Any] = {
        "victim": victim.id,
        "attack": PluginRef(name="fgsm-linf"),
        "threat": ThreatModel(norm=Norm.LINF, epsilon=epsilon),
        "test_set": DIGITS,
        "seed": 0,
    }
    body = CellBody.model_validate(values | over)
    return make_unit("white-box", body, needs=[victim.id])  # type: ignore[list-item]
