"""Plays the workers and the aggregator: ends jobs by the real repository, without computing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from overproof.core.failure import FailureReport
from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind
from overproof.errors import NonFiniteLoss
from overproof.handlers.aggregate import compute_metrics
from overproof.handlers.compare import compute_comparison
from overproof.results.repository import ResultsRepository
from overproof.results.views import Claim, EndKind, Outcome

TOTAL = 100


def work_off(
    repository: ResultsRepository,
    *,
    failing: Collection[JobKind] = (),
    further: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """End every job that can be claimed, then compute the metrics of what is new.

    A network of seed s has 80 + s of 100 samples right; an attack leaves 40 - s of them (S1),
    20 - s (S2) and 30 - s (S3).

    Args:
        repository: where the jobs are.
        failing: kinds of job that end FAILED.
        further: name of an attack → what its results hold besides or instead.
    """
    while claims := list(filter(None, (_claim(repository, kind) for kind in JobKind))):
        for claim in claims:
            repository.end(claim, _outcome(claim.job, claim.job.kind in failing, further))
    for group_id in repository.groups_to_aggregate(limit=1_000):
        repository.recompute(group_id, compute_metrics)
    for comparison_id in repository.comparisons_to_aggregate(limit=1_000):
        repository.recompute_comparison(comparison_id, compute_comparison)


def _claim(repository: ResultsRepository, kind: JobKind) -> Claim | None:
    return repository.claim(kind, owner="played", ttl_s=60)


def _outcome(job: JobSpec, fails: bool, further: Mapping[str, Mapping[str, Any]]) -> Outcome:
    if fails:
        failure = FailureReport.of(NonFiniteLoss("the loss is nan at step 3; lower the rate"))
        return Outcome(EndKind.FAILED, failure=failure)
    results = {
        UnitId(unit.id): {
            **_result(job.kind, unit.body["seed"]),
            **further.get(unit.body.get("attack", {}).get("name", ""), {}),
        }
        for unit in job.units
    }
    return Outcome(EndKind.SUCCEEDED, results=results, facts={"device": "cpu", "torch": "2.6.0"})


def _result(kind: JobKind, seed: int) -> Mapping[str, Any]:
    if kind is JobKind.TRAIN:
        return {"clean_correct": 80 + seed, "total": TOTAL}
    if kind is JobKind.ATTACK:
        robust = {"robust_s1": 40 - seed, "robust_s2": 20 - seed, "robust_s3": 30 - seed}
        return {"total": TOTAL, "clean_correct": 80 + seed, "invalid": None, **robust}
    return {}
