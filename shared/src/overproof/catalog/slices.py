"""What a number is restricted to, written one way everywhere: `pgd-linf[steps=20]@8/255:S2`.

The label of a cell names the attack, the parameters that differ from the attack's defaults, and
the budget; a slice is such a label with the meaning of "robust" behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pydantic import ValidationError

from overproof.catalog.attacks import ATTACKS
from overproof.core.registry import Params, Registry
from overproof.core.semantics import Semantics
from overproof.core.spec import PluginRef, Scalar
from overproof.core.threat import Norm, epsilon_value
from overproof.errors import UnknownPlugin

ALL = ""  # the slice of numbers that are not restricted, such as clean accuracy
# Clean accuracy after the last epoch, and the highest of the epochs that were looked at.
LAST, BEST = "last", "best"

# What stands for an attack in slices of numbers over several, with the norm behind it: over all
# attacks of a budget, and over those of smaller budgets too.
WORST_CASE = "worst-case"
ENVELOPE = "envelope"


@dataclass(frozen=True)
class Cell:
    """One attack at one budget.

    Attributes:
        attack: the attack with its non-default parameters in brackets.
        epsilon: the budget as written in the spec.
    """

    attack: str
    epsilon: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a label as `str` writes it.

        Raises:
            ValueError: `text` is no label of a cell.
        """
        attack, _, epsilon = text.rpartition("@")
        if not attack or not epsilon:
            raise ValueError(f"{text!r} is no attack and budget; write it as 'pgd-linf@8/255'")
        return cls(attack, epsilon)

    @property
    def name(self) -> str:
        """The attack without its parameters."""
        return self.attack.partition("[")[0]

    @property
    def norm(self) -> Norm | None:
        """The last word of the attack's name; None where that is no norm."""
        word = self.name.rpartition("-")[2]
        return Norm(word) if word in list(Norm) else None

    @property
    def radius(self) -> float:
        """The budget as a float in pixel units of [0, 1]."""
        return epsilon_value(self.epsilon)

    def __str__(self) -> str:
        """`attack@epsilon`."""
        return f"{self.attack}@{self.epsilon}"


@dataclass(frozen=True)
class Slice:
    """One attack at one budget, with one meaning of robust.

    Attributes:
        attack: the attack with its non-default parameters in brackets.
        epsilon: the budget as written in the spec.
    """

    attack: str
    epsilon: str
    semantics: Semantics

    @property
    def radius(self) -> float:
        """The budget as a float in pixel units of [0, 1]."""
        return epsilon_value(self.epsilon)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a slice as `str` writes it.

        Raises:
            ValueError: `text` is no slice of an attack.
        """
        label, _, semantics = text.rpartition(":")
        attack, _, epsilon = label.rpartition("@")
        if not attack or not epsilon:
            raise ValueError(f"{text!r} is no slice; write it as 'pgd-linf@8/255:S2'")
        return cls(attack, epsilon, Semantics(semantics))

    def __str__(self) -> str:
        """`attack@epsilon:semantics`."""
        return f"{self.attack}@{self.epsilon}:{self.semantics}"


def plugin_label(registry: Registry, ref: PluginRef) -> str:
    """The plug-in's name and, in brackets, the parameters that differ from its defaults.

    Where a preset sets others, it stands for them. Parameters come in the order in which the
    catalog declares them. A plug-in that is not in the catalog (it is installed elsewhere) shows
    all of its parameters.
    """
    try:
        info = registry.get(ref.name)
    except UnknownPlugin:
        return _labelled(ref.name, ref.params)
    shown = {
        name: ref.params[name]
        for name in info.params.model_fields
        if name in ref.params and not _follows(info.params, ref.params, name)
    }
    return _labelled(info.name, shown)


def cell_label(attack: PluginRef, epsilon: str) -> str:
    """The label of a cell, e.g. `pgd-linf[steps=20]@8/255`."""
    return f"{plugin_label(ATTACKS, attack)}@{epsilon}"


def _follows(model: type[Params], params: Mapping[str, Scalar], name: str) -> bool:
    """Whether the parameter would have its value if it were not given."""
    rest = {other: value for other, value in params.items() if other != name}
    try:
        filled_in: object = getattr(model.model_validate(rest), name)
    except ValidationError:  # it has no default, or others are of an older version
        filled_in = model.model_fields[name].default
    return filled_in == params[name]


def _labelled(name: str, params: Mapping[str, Scalar]) -> str:
    shown = ",".join(f"{key}={_text(value)}" for key, value in params.items())
    return f"{name}[{shown}]" if shown else name


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
