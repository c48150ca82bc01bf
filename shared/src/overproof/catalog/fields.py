"""Bounded numbers and names that parameters of several plug-ins have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

_FAMILY = "(color|crop|cutout|flip|scale|rotate)"
_FAMILIES = f"{_FAMILY}(_{_FAMILY})*"
# `auto`: colour, crop, cutout, flip, scale, rotate; without flip where mirroring changes the class.
Strategy = Annotated[str, Field(pattern=rf"^(auto|none|{_FAMILIES})$")]
# `method`: that of the method which made the set.
StrategyOfMethod = Annotated[str, Field(pattern=rf"^(method|auto|none|{_FAMILIES})$")]
