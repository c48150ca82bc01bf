"""What an attacker may do: a norm and a budget, written as papers write them."""

from __future__ import annotations

import re
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


class Norm(StrEnum):
    """Which distance bounds the perturbation."""

    LINF = "linf"
    L2 = "l2"


def _parse_epsilon(value: Any) -> str:
    """An epsilon as text, kept as written: `8/255`, `0.03`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a budget; write it as '8/255'")
    text = str(value).replace(" ", "")
    if not re.fullmatch(r"\d+(\.\d+)?([eE]-?\d+)?(/\d+)?", text):
        raise ValueError(f"{value!r} is not a budget; write it as '8/255'")
    if text.endswith("/0"):
        raise ValueError(f"{value!r} divides by zero; write it as '8/255'")
    return text


Epsilon = Annotated[str, BeforeValidator(_parse_epsilon)]


def epsilon_value(epsilon: str) -> float:
    """The budget as a float in pixel units of [0, 1]; '8/255' is 0.0314."""
    numerator, _, denominator = epsilon.partition("/")
    return float(Fraction(numerator) / Fraction(denominator or "1"))


class ThreatModel(BaseModel):
    """A norm and a budget. The budget enters ids as written, so 8/255 stays 8/255."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    norm: Norm
    epsilon: Epsilon

    @property
    def radius(self) -> float:
        """The budget as a float in pixel units of [0, 1]."""
        return epsilon_value(self.epsilon)

    @model_validator(mode="after")
    def _refuse_grey_levels(self) -> Self:
        # An L∞ budget of 1 or more is a number of grey levels by mistake.
        if self.norm is Norm.LINF and self.radius >= 1:
            raise ValueError(
                f"epsilon {self.epsilon} covers the whole pixel range; "
                f"did you mean {self.epsilon.partition('/')[0]}/255?"
            )
        return self

    def __str__(self) -> str:
        """For tables: `linf 8/255`."""
        return f"{self.norm.value} {self.epsilon}"
