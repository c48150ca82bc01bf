"""Bounded numbers and names that parameters of several plug-ins have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

# `auto`: colour, crop, cutout, flip, scale, rotate; without flip where mirroring changes the class.
Strategy = Annotated[
    str,
    Field(
        pattern=r"^(auto|none|(color|crop|cutout|flip|scale|rotate)(_(color|crop|cutout|flip|scale|rotate))*)$"
    ),
]
