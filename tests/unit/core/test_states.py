from __future__ import annotations

import pytest

from overproof.core.states import JobState


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_either_terminal_or_live(state: JobState) -> None:
    assert state.is_terminal is not state.is_live


def test_terminal_states_are_those_that_no_worker_leaves() -> None:
    terminal = {state for state in JobState if state.is_terminal}

    assert terminal == {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
