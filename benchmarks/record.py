"""One measured number."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Record:
    """A number beside what it is compared with.

    Attributes:
        name: `area.what`, stable: later runs are compared by it.
        value: ours, in `unit`.
        reference: what stands beside it (other code, or a limit that we set ourselves).
        better: which way is better.
        facts: sizes and settings that the number depends on.
    """

    name: str
    value: float
    unit: str
    reference: str
    reference_value: float
    better: Literal["lower", "higher"] = "lower"
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Above 1 when ours is better."""
        if self.better == "lower":
            return self.reference_value / self.value
        return self.value / self.reference_value

    def to_json(self) -> dict[str, Any]:
        """As it stands in bench/latest.json."""
        return asdict(self) | {"ratio": self.ratio}
