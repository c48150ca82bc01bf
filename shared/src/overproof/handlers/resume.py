"""Runs work step by step within a job: resumes it, reports progress, saves checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overproof.core.clock import Clock, SystemClock
from overproof.runtime.handler import JobContext

if TYPE_CHECKING:
    from overproof.ml.resumable import Resumable

_SECONDS = "seconds"  # the one entry of a checkpoint's metadata


def run_to_end(work: Resumable, context: JobContext, *, clock: Clock | None = None) -> float:
    """Do all remaining steps of `work`.

    Args:
        work: fresh; the checkpoint of an earlier attempt is loaded into it.
        context: of the job.
        clock: for the seconds.

    Returns:
        Seconds spent on the steps, those before a resumed checkpoint included.

    Raises:
        JobCancelled, ShuttingDown: from `context.progress`, after a checkpoint where one was due.
        NonFiniteLoss: the work diverged.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    clock = clock or SystemClock()
    first, seconds = 0, 0.0
    checkpoint = context.load_checkpoint()
    if checkpoint is not None:
        work.load_state(load_file(checkpoint.path))
        with safe_open(checkpoint.path, framework="pt") as file:
            seconds = float((file.metadata() or {}).get(_SECONDS, 0.0))
        first = checkpoint.step

    began = clock.monotonic() - seconds
    for index in range(first, work.total_steps):
        scalars = work.step(index)
        # Not after the last step: a job resumed there would end without having seen a loss.
        if index + 1 < work.total_steps and context.should_checkpoint():
            path = context.workdir / "checkpoint.safetensors"
            elapsed = clock.monotonic() - began
            save_file(work.state(), path, metadata={_SECONDS: repr(elapsed)})
            context.save_checkpoint(index + 1, path)
        context.progress(index + 1, work.total_steps, **scalars)
    return clock.monotonic() - began
