"""Long work in steps that can be stopped after any of them and taken up in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor


class Resumable(Protocol):
    """Work of `total_steps` steps whose whole state between two of them is tensors.

    Randomness of step i comes from generators named by i, never from what earlier steps left in a
    generator. So `load_state(state())` in a fresh object of equal arguments, then the remaining
    steps, ends in the same bytes as a straight run on the same CPU.
    """

    @property
    def total_steps(self) -> int:
        """How many steps there are; 0 for work without a loop."""
        ...

    def step(self, index: int) -> Mapping[str, float]:
        """Do step `index`, which follows the last one done; steps count from 0.

        Returns:
            Numbers for the progress display; empty where reading them would make the host wait
            for the device.

        Raises:
            NonFiniteLoss: the work diverged; the message names the step.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """What the next step needs; copies, on any device."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned after some step.

        Raises:
            KeyError: a tensor is missing: the state is of other work.
            OtherSteps: it is of this work, but its steps were others, so that their number says
                nothing about what is done. Nothing was taken up.
        """
        ...


@runtime_checkable
class LongSteps(Resumable, Protocol):
    """Work whose steps may take minutes.

    Attributes:
        pulse: called every now and then within a step. What it raises ends the step, and the work
            of that step is lost; the state is that after the step before.
    """

    pulse: Callable[[], None]
