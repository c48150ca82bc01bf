"""Tasks of tests; children know them by `OVERPROOF_PLUGINS=tests.worker.tasks:register`.

The body of their units is plain: what a handler does follows from `behaviour` and `seed`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from overproof.catalog.tasks import TASKS, TaskInfo
from overproof.core.ids import UnitId, unit_id_of
from overproof.core.spec import JobSpec, Unit
from overproof.core.states import JobKind
from overproof.errors import NonFiniteLoss, OutOfMemory, ShuttingDown, StopSignal
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class ProbeBody(BaseModel):
    """What a probe does, and with which seed."""

    behaviour: str
    seed: int
    steps: int = 3
    marks: str = ""


class ProbeHandler(JobHandler):
    """Draws `steps` random numbers, in a way that survives being stopped, and writes them."""

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        outputs = {UnitId(unit.id): self._make(job, unit, context) for unit in job.units}
        return {} if "forgets" in str(job.units[0].body) else outputs

    def _make(self, job: JobSpec, unit: Unit, context: JobContext) -> UnitOutput:
        body = ProbeBody.model_validate(unit.body)
        behaviour = body.behaviour
        if behaviour == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "nan":
            raise NonFiniteLoss("the loss is NaN at step 0")
        if behaviour == "stops-unasked":
            raise ShuttingDown("for no reason")
        if behaviour == "cuda-error":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if behaviour == "no-json":
            return UnitOutput(result={"path": context.workdir})
        if behaviour == "nan-result":
            return UnitOutput(result={"loss": float("nan")})
        if behaviour == "error":
            raise RuntimeError("no luck today")
        if behaviour == "full-disk":
            raise OSError(28, "No space left on device")
        if behaviour == "out-of-memory" or (
            behaviour == "out-of-memory-once" and context.batch_scale == 1.0
        ):
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 PB")
        if behaviour == "too-large":
            raise OutOfMemory("the probe takes about 2 GiB; batch 5 would fit")
        if behaviour == "sleep":
            time.sleep(60)
        if behaviour == "noisy":
            print("a word on standard output")  # noqa: T201
        if behaviour == "disturb":
            random.seed(7)
        inputs = {
            need: json.loads(context.input(need, "numbers").read_text()) for need in unit.needs
        }
        numbers = self._numbers(body, context)
        file = context.workdir / f"{unit.id}.json"
        file.write_text(
            json.dumps({"numbers": numbers, "inputs": inputs, "global": random.random()})
        )
        return UnitOutput(
            result={"seed": body.seed, "count": len(numbers)}, files={"numbers": file}
        )

    def _numbers(self, body: ProbeBody, context: JobContext) -> list[float]:
        numbers: list[float] = []
        checkpoint = context.load_checkpoint()
        if checkpoint is not None:
            numbers = json.loads(checkpoint.path.read_text())
            context.note(resumed_at=checkpoint.step)
        for step in range(len(numbers), body.steps):
            numbers.append(random.Random(f"{body.seed} {step}").random())
            if body.behaviour == "slow":
                time.sleep(0.02)
            if context.should_checkpoint() or body.behaviour == "checkpoint-always":
                self._save(numbers, context)
            with suppress(StopSignal) if body.behaviour == "deaf" else nullcontext():
                context.progress(step + 1, body.steps, loss=1 / (step + 1))
        return numbers

    def _save(self, numbers: list[float], context: JobContext) -> None:
        file: Path = context.workdir / "checkpoint.json"
        file.write_text(json.dumps(numbers))
        context.save_checkpoint(len(numbers), file)


TASK_OF = {kind: f"probe-{kind.value}" for kind in JobKind}


def register() -> None:
    """Add one task for each kind."""
    for kind, name in TASK_OF.items():
        if name not in TASKS.names():
            TASKS.add(
                TaskInfo(
                    name=name,
                    target="tests.worker.tasks:ProbeHandler",
                    summary="for tests",
                    source="tests",
                    kind=kind,
                    body=ProbeBody,
                )
            )


def a_probe(
    behaviour: str = "",
    seed: int = 0,
    kind: JobKind = JobKind.DISTILL,
    needs: Any = (),
    **over: Any,
) -> Unit:
    """A unit of a test task."""
    body = ProbeBody(behaviour=behaviour, seed=seed, **over).model_dump()
    needed = tuple(unit.id for unit in needs)
    unit_id = unit_id_of(kind, TASK_OF[kind], {**body, "needs": list(needed)}, {})
    return Unit(id=unit_id, kind=kind, task=TASK_OF[kind], body=body, needs=needed)
