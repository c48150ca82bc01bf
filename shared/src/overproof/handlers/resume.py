"""Runs work step by step within a job: resumes it, reports progress, saves checkpoints."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from overproof.core.clock import Clock, SystemClock
from overproof.errors import NonFiniteLoss, OtherSteps
from overproof.handlers.showing import Showing
from overproof.runtime.handler import JobContext

if TYPE_CHECKING:
    from torch import Tensor

    from overproof.ml.resumable import Resumable

_log = logging.getLogger(__name__)

# Entries of a checkpoint's metadata.
_SECONDS = "seconds"
_LOSSES = "losses"

_GOOD_STATES = 100  # that are looked at in the course of a run


def run_to_end(
    work: Resumable,
    context: JobContext,
    *,
    clock: Clock | None = None,
    showing: Showing | None = None,
) -> float:
    """Do all remaining steps of `work`.

    Args:
        work: fresh; the checkpoint of an earlier attempt is loaded into it.
        context: of the job.
        clock: for the seconds.
        showing: of the work, for work that is shown. A state of such work that is not finite is
            never saved, and the last good one of a run that diverges is kept as a checkpoint, at
            most a hundredth of the run before its end.

    Returns:
        Seconds spent on the steps, those before a resumed checkpoint included.

    Raises:
        JobCancelled, ShuttingDown: from `context.progress`, after a checkpoint where one was due.
        NonFiniteLoss: the work diverged, by its loss or its state.
    """
    from overproof.ml.resumable import LongSteps

    run = _Run(work, context, clock or SystemClock(), showing)
    if isinstance(work, LongSteps):
        work.pulse = run.pulse
    first = run.resume()
    try:
        for index in range(first, work.total_steps):
            run.step(index)
        if showing is not None and first < work.total_steps:
            run.good_state(work.total_steps)
    except NonFiniteLoss as error:
        kept = run.keep_good()
        if kept is None:
            raise
        raise NonFiniteLoss(f"{error}; the state after step {kept} is kept") from error
    finally:
        if showing is not None:
            showing.flush()
    return run.seconds


class _Run:
    def __init__(
        self, work: Resumable, context: JobContext, clock: Clock, showing: Showing | None
    ) -> None:
        self._work = work
        self._context = context
        self._clock = clock
        self._showing = showing
        self._began = clock.monotonic()
        self._done = 0  # steps
        self._saved = 0  # steps done in the newest checkpoint
        self._good: tuple[int, dict[str, Tensor]] | None = None

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    def resume(self) -> int:
        """Load the checkpoint, if there is one that fits; how many steps are done."""
        from safetensors import safe_open
        from safetensors.torch import load_file

        losses = ""
        checkpoint = self._context.load_checkpoint()
        if checkpoint is not None:
            try:
                self._work.load_state(load_file(checkpoint.path))
            except OtherSteps as error:
                _log.warning("starting over, not at step %d: %s", checkpoint.step, error)
                checkpoint = None
        if checkpoint is not None:
            with safe_open(checkpoint.path, framework="pt") as file:
                metadata = file.metadata() or {}
            losses = metadata.get(_LOSSES, "")
            self._saved = checkpoint.step
            self._began = self._clock.monotonic() - float(metadata.get(_SECONDS, 0.0))
        if self._showing is not None:
            self._showing.begin(self._saved, losses)
        return self._saved

    def step(self, index: int) -> None:
        work, context, showing = self._work, self._context, self._showing
        self._done = index
        scalars = work.step(index)
        self._done = done = index + 1
        if showing is not None:
            showing.after(done, scalars)
        # Not after the last step: a job resumed there would end without having seen a loss.
        if done < work.total_steps and context.should_checkpoint():
            self._save(done, self.good_state(done))
        elif showing is not None and done % max(1, work.total_steps // _GOOD_STATES) == 0:
            self._good = done, self.good_state(done)
        context.progress(done, work.total_steps, **scalars)

    def pulse(self) -> None:
        """Within a long step: save the state before it where that is due, and report.

        Raises:
            JobCancelled, ShuttingDown: from `context.progress`.
        """
        done = self._done
        if done > self._saved and self._context.should_checkpoint():
            self._save(done, self.good_state(done))
        self._context.progress(done, self._work.total_steps)

    def good_state(self, done: int) -> dict[str, Tensor]:
        """The state after `done` steps.

        Raises:
            NonFiniteLoss: it is not good.
        """
        state = self._work.state()
        if self._showing is None:
            return state  # infinity may be a value like any other
        for name, tensor in state.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NonFiniteLoss(
                    f"{name}: not finite after step {done}; lower the learning rate"
                )
        return state

    def keep_good(self) -> int | None:
        """Save the last good state; after how many steps it was, None for the very beginning."""
        if self._good is not None and self._good[0] > self._saved:
            self._save(*self._good)
        return self._saved or None

    def _save(self, done: int, state: dict[str, Tensor]) -> None:
        from safetensors.torch import save_file

        metadata = {_SECONDS: repr(self.seconds)}
        if self._showing is not None:
            metadata[_LOSSES] = self._showing.losses.text()
        path = self._context.workdir / "checkpoint.safetensors"
        save_file(state, path, metadata=metadata)
        self._context.save_checkpoint(done, path)
        self._saved, self._good = done, None
