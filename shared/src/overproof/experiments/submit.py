"""Puts a plan into the database in one transaction, then rings the doorbell."""

from __future__ import annotations

from overproof.bus.announcing import announce_ready
from overproof.bus.base import Bus
from overproof.core.clock import Clock
from overproof.experiments.planner import ExperimentPlan, batch
from overproof.results.repository import ResultsRepository
from overproof.results.views import Submitted


def submit(
    plan: ExperimentPlan,
    *,
    repository: ResultsRepository,
    bus: Bus,
    clock: Clock,
    retry_failed: bool = False,
) -> Submitted:
    """Create the experiment; units that exist are linked, missing ones are batched into jobs.

    If the process dies after the transaction, nothing is lost: workers find the jobs by
    themselves. If it dies before, nothing has happened.

    Raises:
        DatabaseUnavailable: nothing was submitted.
    """
    submitted = repository.create_experiment(
        plan.spec,
        plan.units,
        groups=plan.groups,
        comparisons=plan.comparisons,
        batch=batch,
        retry_failed=retry_failed,
    )
    announce_ready(bus, submitted.ready, clock)
    return submitted
