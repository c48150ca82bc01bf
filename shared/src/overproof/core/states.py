"""The kinds of job and the states that jobs and units go through."""

from __future__ import annotations

from enum import StrEnum


class JobKind(StrEnum):
    """Three kinds for ever, each with its topic and its worker service; tasks are many."""

    DISTILL = "distill"
    TRAIN = "train"
    ATTACK = "attack"


class JobState(StrEnum):
    """WAITING → READY → RUNNING → SUCCEEDED | FAILED | CANCELLED.

    A retry is READY with a later `due_at`. Terminal states are left only by the three named
    transitions of `Transition`, each of which raises the job's token.
    """

    WAITING = "WAITING"
    READY = "READY"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether no worker will touch the job again by itself."""
        return self in TERMINAL

    @property
    def is_live(self) -> bool:
        """Whether the job will still end, if its workers run."""
        return self not in TERMINAL


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class Transition(StrEnum):
    """The only ways out of a terminal state."""

    RETRY = "retry"  # FAILED → READY | WAITING, by a person
    RESUBMIT = "resubmit"  # CANCELLED (or FAILED, if asked) → READY | WAITING, by a submission
    QUARANTINE = "quarantine"  # SUCCEEDED → READY, since a reader found its artifact corrupt


class UnitState(StrEnum):
    """A unit is PENDING until a job that carries it succeeds."""

    PENDING = "PENDING"
    DONE = "DONE"


class StopReason(StrEnum):
    """Why a running job is asked to stop."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"  # somebody else holds the claim
    TIMEOUT = "timeout"
