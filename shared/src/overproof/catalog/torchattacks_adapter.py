"""Parameters of the attacks that the package torchattacks runs for us."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from overproof.core.registry import Params


class TorchattacksParams(Params):
    """An attack of the package torchattacks by its class name; its own parameters stand beside it.

    The budget, the seed and the number of classes are those of the cell.
    """

    # Flat, as `{attack: PGD, alpha: 0.01, steps: 20}`; torchattacks says which there are.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, bool | int | float | str] = Field(init=False)

    attack: str

    @property
    def settings(self) -> dict[str, bool | int | float | str]:
        """Parameters of the attack itself."""
        return dict(self.__pydantic_extra__)
