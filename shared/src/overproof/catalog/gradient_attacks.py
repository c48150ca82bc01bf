"""Parameters of attacks by gradients: steps inside a ball, and searches for the nearest image.

Those of AutoAttack and its parts are in `autoattack`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overproof.core.registry import Params
from overproof.core.threat import Epsilon

Steps = Annotated[int, Field(ge=1, le=100_000)]


class FgsmParams(Params):
    """One step of the size of the budget."""


class BimParams(Params):
    """Iterated steps from the image itself."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"


class PgdParams(Params):
    """Iterated steps from a random start in the ball."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    random_start: bool = True
    restarts: Annotated[int, Field(ge=1, le=100)] = 1


class L2PgdParams(Params):
    """Iterated steps from a random start in the L2 ball; `step_size` is the length of a step."""

    steps: Steps = 10
    step_size: Epsilon = "0.2"
    random_start: bool = True
    restarts: Annotated[int, Field(ge=1, le=100)] = 1


class LinfCwParams(Params):
    """Iterated steps on the margin, until a wrong class leads by `confidence`."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    confidence: Annotated[float, Field(ge=0)] = 50.0
    random_start: bool = True


class MomentumParams(Params):
    """Iterated steps along gradients summed up, the old ones weighted down by `decay`.

    `freeze_at_zero_gradient` repeats the published code: a sample whose gradient was zero once
    never moves again.
    """

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    decay: Annotated[float, Field(ge=0, le=10)] = 1.0
    freeze_at_zero_gradient: bool = False


class VarianceTuningParams(MomentumParams):
    """As with momentum; `neighbours` are drawn within `spread` budgets of the iterate."""

    neighbours: Annotated[int, Field(ge=1, le=1000)] = 5
    spread: Annotated[float, Field(gt=0, le=10)] = 1.5


class JitterParams(Params):
    """Iterated steps; `scale` sharpens the probabilities, `std` is the noise put on them."""

    steps: Steps = 10
    step_size: Epsilon = "2/255"
    scale: Annotated[float, Field(gt=0)] = 10.0
    std: Annotated[float, Field(ge=0)] = 0.1
    random_start: bool = True


class L2CwParams(Params):
    """Adam on distance plus `constant` times the margin; further `search_steps` tune it."""

    steps: Steps = 50
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    constant: Annotated[float, Field(gt=0)] = 1.0
    search_steps: Annotated[int, Field(ge=1, le=50)] = 1


class DeepFoolParams(Params):
    """At most `steps` linearisations; the sum of the steps is stretched by 1 + `overshoot`."""

    steps: Steps = 50
    overshoot: Annotated[float, Field(ge=0, le=1)] = 0.02
