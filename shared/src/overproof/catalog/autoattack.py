"""Parameters of AutoAttack and its parts, with the numbers of its two well-known implementations.

The default of every field is the official one (fra31/auto-attack). The preset `torchattacks`
stands for Harry24k/adversarial-attacks-pytorch and the benchmarks built on it: ten steps instead
of a hundred, every wrong class as a target instead of nine, and Square's schedule stretched to its
number of queries. A field that is given wins over the preset.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from overproof.core.registry import Params

Preset = Literal["official", "torchattacks"]
Steps = Annotated[int, Field(ge=1, le=100_000)]
Restarts = Annotated[int, Field(ge=1, le=100)]
Draws = Annotated[int, Field(ge=1, le=1_000)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
# None means every class but the true one; more than there are is the same.
Targets = Annotated[int, Field(ge=1)] | None

_TORCHATTACKS: dict[str, Any] = {"steps": 10, "targets": None, "rescale_schedule": True}


class PresetParams(Params):
    """Fields that are not given are taken from the preset."""

    preset: Preset = "official"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") != "torchattacks":
            return data
        preset = {name: value for name, value in _TORCHATTACKS.items() if name in cls.model_fields}
        return preset | data


class ApgdParams(PresetParams):
    """Untargeted APGD."""

    steps: Steps = 100
    restarts: Restarts = 1
    rho: Share = 0.75
    eot_iterations: Draws = 1


class TargetedApgdParams(ApgdParams):
    """APGD towards the likeliest wrong classes, one after another."""

    targets: Targets = 9


class FabParams(PresetParams):
    """FAB towards whichever boundary is nearest."""

    steps: Steps = 100
    restarts: Restarts = 1
    alpha_max: Share = 0.1
    eta: Annotated[float, Field(ge=1.0, le=10.0)] = 1.05
    beta: Share = 0.9


class TargetedFabParams(FabParams):
    """FAB towards the boundaries of the likeliest wrong classes, one after another."""

    targets: Targets = 9


class SquareParams(PresetParams):
    """Random search with squares.

    `batch_shared_draws` repeats the published code: all images get the squares of one image.
    """

    queries: Steps = 5_000
    restarts: Restarts = 1
    p_init: Share = 0.8
    rescale_schedule: bool = False
    batch_shared_draws: bool = False


class AutoAttackParams(PresetParams):
    """A cascade; `steps` is that of APGD and FAB, the last three fields are those of Square."""

    version: Literal["standard", "plus", "rand"] = "standard"
    steps: Steps = 100
    targets: Targets = 9
    queries: Steps = 5_000
    rescale_schedule: bool = False
    batch_shared_draws: bool = False
