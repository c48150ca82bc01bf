"""Tasks whose whole work is to be watched: they show that a task is one entry and one file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from overproof.catalog.tasks import TASKS, TaskInfo
from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind
from overproof.errors import PermanentError
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class CountingBody(BaseModel):
    """Count `steps` times, `step_s` apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    steps: int = 1
    step_s: float = 0.0
    fate: str = "succeed"  # succeed | fail | kill


class CountingHandler(JobHandler):
    """Counts and adds up; resumes from its checkpoint, which makes a lost step visible."""

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        return {
            UnitId(unit.id): self._count(CountingBody(**unit.body), context) for unit in job.units
        }

    def _count(self, body: CountingBody, context: JobContext) -> UnitOutput:
        if body.fate == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if body.fate == "fail":
            raise PermanentError(f"number {body.number} is meant to fail")
        checkpoint = context.load_checkpoint()
        first, total = (0, 0)
        if checkpoint is not None:
            first, total = checkpoint.step, int(checkpoint.path.read_text())
        for step in range(first + 1, body.steps + 1):
            time.sleep(body.step_s)
            total += step * body.number
            if context.should_checkpoint():
                file = context.workdir / "state"
                file.write_text(str(total))
                context.save_checkpoint(step, file)
            context.progress(step, body.steps)
        output = context.workdir / f"total-{body.number}"
        output.write_text(str(total))
        return UnitOutput(result={"total": total, "first": first}, files={"total": output})


def register() -> None:
    """Named by OVERPROOF_PLUGINS."""
    for kind in JobKind:
        TASKS.add(
            TaskInfo(
                name=f"counting-{kind.value}",
                target="tests.e2e.plugins:CountingHandler",
                summary="count",
                source="tests",
                kind=kind,
                body=CountingBody,
            )
        )
