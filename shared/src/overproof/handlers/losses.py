"""The losses of a run as a small table that survives being stopped."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

_MOST_ROWS = 1_000
_READ_EVERY = 25  # steps between two readings of a GPU, in most methods


class LossCurve:
    """Rows of a step and its losses, few enough to be drawn.

    A run of up to 1,000 steps has a row for each whose losses were read, a longer one for every
    25th or a multiple of that. Which rows there are depends on the number of steps alone, never on
    the clock, so a resumed run ends with the table of a straight one.

    Args:
        total_steps: of the run.
    """

    def __init__(self, total_steps: int) -> None:
        per_row = -(-total_steps // (_READ_EVERY * _MOST_ROWS))
        self._every = 1 if total_steps <= _MOST_ROWS else _READ_EVERY * per_row
        self._total_steps = total_steps
        self._rows: list[tuple[int, Mapping[str, str]]] = []

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def terms(self) -> list[str]:
        """Names of the losses, in the order in which they first came."""
        return list(dict.fromkeys(name for _, values in self._rows for name in values))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Take up what step number `step`, counted from 1, says; nothing where it says nothing."""
        if scalars and ((step - 1) % self._every == 0 or step == self._total_steps):
            self._rows.append((step, {name: repr(value) for name, value in scalars.items()}))

    def text(self) -> str:
        """CSV: the column `step` and one for each loss; empty where a step has none of a name."""
        into = io.StringIO()
        writer = csv.DictWriter(into, ["step", *self.terms], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"step": step} | dict(values) for step, values in self._rows)
        return into.getvalue()

    def restore(self, text: str, steps: int) -> None:
        """Begin with what `text` returned, without rows after step `steps`."""
        self._rows = []
        for row in csv.DictReader(io.StringIO(text)):
            values = {name: value for name, value in row.items() if name != "step" and value}
            if int(row["step"]) <= steps:
                self._rows.append((int(row["step"]), values))
