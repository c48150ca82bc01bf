"""The only place where names of topics and consumer groups exist."""

from __future__ import annotations

from enum import StrEnum

from overproof.core.states import JobKind


class Topic(StrEnum):
    """Every topic; dots only, since Kafka's metrics confuse dots and underscores."""

    JOBS_DISTILL = "jobs.distill"
    JOBS_TRAIN = "jobs.train"
    JOBS_ATTACK = "jobs.attack"
    EVENTS_JOBS = "events.jobs"
    ARTIFACTS_UPLOADED = "artifacts.uploaded"
    DEAD_JOBS_DISTILL = "dead.jobs.distill"
    DEAD_JOBS_TRAIN = "dead.jobs.train"
    DEAD_JOBS_ATTACK = "dead.jobs.attack"
    DEAD_EVENTS_JOBS = "dead.events.jobs"
    DEAD_ARTIFACTS_UPLOADED = "dead.artifacts.uploaded"

    @classmethod
    def jobs(cls, kind: JobKind) -> Topic:
        """Where jobs of `kind` are announced."""
        return cls(f"jobs.{kind.value}")

    @property
    def dead(self) -> Topic:
        """Where messages of this topic go that nobody can use."""
        return Topic(f"dead.{self.value}")


class Group(StrEnum):
    """Consumer groups: the name of the service that reads."""

    AGGREGATOR = "aggregator"
    BENCHMARKER = "benchmarker"
