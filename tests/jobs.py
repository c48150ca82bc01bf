"""Small graphs of units and what workers do with their jobs, for tests of the results database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from overproof.core.failure import FailureReport
from overproof.core.ids import GroupId, UnitId, group_id_of
from overproof.core.spec import JobSpec, Unit
from overproof.core.states import JobKind
from overproof.errors import NonFiniteLoss
from overproof.results.repository import ResultsRepository
from overproof.results.views import Claim, EndKind, Outcome, Submitted
from tests.builders import an_experiment

TTL_S = 60.0
GROUP_BODY = {"network": "convnet"}
GROUP = group_id_of(GROUP_BODY)
FAILURE = FailureReport.of(NonFiniteLoss("the loss is nan at step 3"))


def a_set(number: int) -> Unit:
    """A unit that needs nothing."""
    return Unit(
        id=f"dst-{number:032x}", kind=JobKind.DISTILL, task="synthesis", body={"seed": number}
    )


def a_network_on(*needs: Unit, number: int = 0, group: GroupId | None = None) -> Unit:
    """A unit that needs others."""
    return Unit(
        id=f"trn-{number:032x}",
        kind=JobKind.TRAIN,
        task="networks",
        body={"seed": number},
        needs=tuple(UnitId(unit.id) for unit in needs),
        group=group,
    )


def a_cell_on(victim: Unit, number: int = 0) -> Unit:
    """A unit that needs one other."""
    return Unit(
        id=f"atk-{number:032x}",
        kind=JobKind.ATTACK,
        task="white-box",
        body={"seed": number},
        needs=(UnitId(victim.id),),
    )


def one_each(units: Sequence[Unit]) -> list[JobSpec]:
    """A job for each unit."""
    return [JobSpec.of((unit,)) for unit in units]


def by_kind(units: Sequence[Unit]) -> list[JobSpec]:
    """A job for all units of a kind."""
    kinds = sorted({unit.kind for unit in units})
    return [JobSpec.of(tuple(u for u in units if u.kind is kind)) for kind in kinds]


def submit(
    repository: ResultsRepository,
    units: Iterable[Unit],
    *,
    batch: Callable[[Sequence[Unit]], Sequence[JobSpec]] = one_each,
    retry_failed: bool = False,
    **spec: Any,
) -> Submitted:
    """An experiment that asks for `units`; `spec` are the fields that matter to the test."""
    return repository.create_experiment(
        an_experiment(**spec),
        list(units),
        groups={GROUP: GROUP_BODY},
        batch=batch,
        retry_failed=retry_failed,
    )


def claim(
    repository: ResultsRepository, kind: JobKind = JobKind.DISTILL, owner: str = "worker"
) -> Claim:
    """A claim of a job that must be there."""
    claimed = repository.claim(kind, owner=owner, ttl_s=TTL_S)
    assert claimed is not None
    return claimed


def success(claim: Claim, **result: Any) -> Outcome:
    """All units of the job are made."""
    return Outcome(EndKind.SUCCEEDED, {UnitId(unit.id): result for unit in claim.job.units})


def failed() -> Outcome:
    """The job failed for good."""
    return Outcome(EndKind.FAILED, failure=FAILURE)


def retry_in(seconds: float) -> Outcome:
    """The job failed, and is worth another attempt."""
    return Outcome(EndKind.RETRY, failure=FAILURE, retry_in_s=seconds)
