from __future__ import annotations

import pytest

from overproof.core.states import StopReason
from overproof.errors import JobCancelled, ShuttingDown
from overproof.runtime.stopping import StopRequest


def test_job_goes_on_until_asked() -> None:
    stop = StopRequest()

    stop.raise_if_set()

    assert (stop.reason, stop.wants_checkpoint, stop.wait(0)) == (None, False, False)


@pytest.mark.parametrize("reason", [StopReason.SHUTDOWN, StopReason.TIMEOUT])
def test_job_that_will_be_resumed_is_worth_a_checkpoint(reason: StopReason) -> None:
    stop = StopRequest()
    stop.set(reason)

    assert stop.wants_checkpoint
    with pytest.raises(ShuttingDown):
        stop.raise_if_set()


@pytest.mark.parametrize("reason", [StopReason.CANCEL, StopReason.LOST])
def test_job_that_nobody_wants_is_not(reason: StopReason) -> None:
    stop = StopRequest()
    stop.set(reason)

    assert not stop.wants_checkpoint
    with pytest.raises(JobCancelled):
        stop.raise_if_set()


def test_cancellation_during_shutdown_counts() -> None:
    stop = StopRequest()
    stop.set(StopReason.SHUTDOWN)

    stop.set(StopReason.CANCEL)
    stop.set(StopReason.SHUTDOWN)

    assert stop.reason is StopReason.CANCEL
