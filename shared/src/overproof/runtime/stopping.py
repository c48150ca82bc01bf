"""The request to stop, as a running job sees it."""

from __future__ import annotations

import threading

from overproof.core.states import StopReason
from overproof.errors import JobCancelled, ShuttingDown

_UNWANTED = frozenset({StopReason.CANCEL, StopReason.LOST})


class StopRequest:
    """Set by one thread, seen by the job in another. Once set it stays set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason: StopReason | None = None

    @property
    def reason(self) -> StopReason | None:
        """Why to stop, None while the job may go on."""
        return self._reason

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the job will be resumed, so that its state is worth saving."""
        return self._reason is not None and self._reason not in _UNWANTED

    def set(self, reason: StopReason) -> None:
        """Ask to stop. The reason that was given first stays, unless nobody wants the job now."""
        if self._reason is None or reason in _UNWANTED:
            self._reason = reason
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether a stop was asked for within `timeout_s`."""
        return self._event.wait(timeout_s)

    def raise_if_set(self) -> None:
        """Return at once while the job may go on.

        Raises:
            JobCancelled: nobody wants the result of this attempt.
            ShuttingDown: the job will be resumed by another attempt.
        """
        if self._reason is None:
            return
        if self._reason in _UNWANTED:
            raise JobCancelled(f"the job was asked to stop: {self._reason.value}")
        raise ShuttingDown(f"the job was asked to stop: {self._reason.value}")
