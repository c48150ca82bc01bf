"""What parent and child say to each other: frozen values, one line of JSON each, never pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from overproof.core.failure import FailureReport
from overproof.core.ids import JobId, UnitId
from overproof.core.spec import JobSpec
from overproof.core.states import StopReason
from overproof.results.views import Claim
from overproof.runtime.settings import ChildSettings


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def line(self) -> bytes:
        """The message as one line."""
        return self.model_dump_json().encode() + b"\n"


# ---- parent to child -------------------------------------------------------------------------


class Setup(_Message):
    """The first message: by what the child builds its store. It may hold secrets."""

    type: Literal["setup"] = "setup"
    settings: ChildSettings

    def line(self) -> bytes:
        """The message as one line, secrets included: it travels over a private pipe."""
        values = self.settings.revealed()
        return TypeAdapter(dict).dump_json({"type": self.type, "settings": values}) + b"\n"


class JobRequest(_Message):
    """One attempt at a job: all that a child needs to know of a claim."""

    type: Literal["job"] = "job"
    job: JobSpec
    token: int
    attempt: int
    inputs: Mapping[UnitId, JobId]

    @classmethod
    def of(cls, claim: Claim) -> JobRequest:
        """The attempt that `claim` stands for."""
        return cls(
            job=claim.job, token=claim.token, attempt=claim.attempt, inputs=dict(claim.inputs)
        )


class Stop(_Message):
    """Stop the running job at its next cooperative point."""

    type: Literal["stop"] = "stop"
    reason: StopReason


Command = Annotated[Setup | JobRequest | Stop, Field(discriminator="type")]
COMMANDS: TypeAdapter[Setup | JobRequest | Stop] = TypeAdapter(Command)


# ---- child to parent -------------------------------------------------------------------------


class UnusableInput(_Message):
    """An input whose producer must make it again.

    Attributes:
        job_id: the producer.
        manifest_token: token in the manifest that was read, None when there was no manifest; a
            manifest with another token is a newer one and is left alone.
    """

    job_id: JobId
    manifest_token: int | None


class Advanced(_Message):
    """How far the job is; `scalars` are finite."""

    type: Literal["advanced"] = "advanced"
    step: int
    total: int
    scalars: Mapping[str, float] = Field(default_factory=dict)


class Done(_Message):
    """The manifest is in the store.

    Attributes:
        results: every unit of the job → its small result, as the winning manifest has it.
        facts: of the winning manifest.
        reusable: whether the process may run another job.
    """

    type: Literal["done"] = "done"
    results: Mapping[UnitId, Mapping[str, Any]]
    facts: Mapping[str, Any] = Field(default_factory=dict)
    reusable: bool = True


class Failed(_Message):
    """The attempt ended without a manifest: by a failure, or since it was asked to stop."""

    type: Literal["failed"] = "failed"
    failure: FailureReport
    unusable: UnusableInput | None = None
    facts: Mapping[str, Any] = Field(default_factory=dict)
    reusable: bool = False


Report = Advanced | Done | Failed
REPORTS: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="type")])
