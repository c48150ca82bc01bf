"""The seam around jobs: metrics, health and logs hang here, and so do the tests of crashes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import StrEnum

from overproof.results.views import Claim, EndKind, KindStatus, Progress

_log = logging.getLogger(__name__)


class Moment(StrEnum):
    """Between which steps of a job a worker may die; each is followed by the step it names."""

    START = "start"  # the claim is committed
    ANNOUNCE_START = "announce-start"  # the child has the job
    SETTLE = "settle"  # the child has reported
    QUARANTINE = "quarantine"  # a producer's artifact was found unusable
    END = "end"  # what follows is the transaction
    ANNOUNCE_END = "announce-end"  # the transaction is committed
    ANNOUNCE_READY = "announce-ready"  # JOB_ENDED is out
    IDLE = "idle"  # all is done


class Hooks:
    """Does nothing. Subclasses override what they care for.

    Called on the thread of the worker or aggregator, so they return quickly. An exception of a
    hook is logged and does no harm.
    """

    def before(self, moment: Moment, claim: Claim) -> None:
        """The worker is about to take the step."""

    def after_turn(self) -> None:
        """The main loop has gone round once."""

    def after_answer(self) -> None:
        """The database has answered."""

    def after_start(self, claim: Claim) -> None:
        """A job has begun."""

    def after_progress(self, claim: Claim, progress: Progress) -> None:
        """A running job has reported."""

    def after_end(self, claim: Claim, outcome: EndKind, seconds: float) -> None:
        """The end of an attempt is committed."""

    def after_lost(self, claim: Claim) -> None:
        """Somebody else holds the job, or it has ended: this attempt counts for nothing."""

    def after_outage(self, backend: str) -> None:
        """`bus`, `store` or `database` did not answer."""

    def after_dead_letter(self, topic: str, reason: str) -> None:
        """A message was put aside."""

    def after_recompute(self, seconds: float) -> None:
        """The metrics of one group are up to date."""

    def after_survey(self, kinds: Sequence[KindStatus]) -> None:
        """The aggregator has counted what there is to do."""


class HookChain(Hooks):
    """Calls several hooks in order; one that fails does not keep the others from being called."""

    def __init__(self, hooks: Iterable[Hooks]) -> None:
        self._hooks = tuple(hooks)

    def before(self, moment: Moment, claim: Claim) -> None:
        """To all."""
        self._call("before", moment, claim)

    def after_turn(self) -> None:
        """To all."""
        self._call("after_turn")

    def after_answer(self) -> None:
        """To all."""
        self._call("after_answer")

    def after_start(self, claim: Claim) -> None:
        """To all."""
        self._call("after_start", claim)

    def after_progress(self, claim: Claim, progress: Progress) -> None:
        """To all."""
        self._call("after_progress", claim, progress)

    def after_end(self, claim: Claim, outcome: EndKind, seconds: float) -> None:
        """To all."""
        self._call("after_end", claim, outcome, seconds)

    def after_lost(self, claim: Claim) -> None:
        """To all."""
        self._call("after_lost", claim)

    def after_outage(self, backend: str) -> None:
        """To all."""
        self._call("after_outage", backend)

    def after_dead_letter(self, topic: str, reason: str) -> None:
        """To all."""
        self._call("after_dead_letter", topic, reason)

    def after_recompute(self, seconds: float) -> None:
        """To all."""
        self._call("after_recompute", seconds)

    def after_survey(self, kinds: Sequence[KindStatus]) -> None:
        """To all."""
        self._call("after_survey", kinds)

    def _call(self, name: str, *arguments: object) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, name)(*arguments)
            except Exception:
                _log.exception("hook %s of %s failed", name, type(hook).__name__)
