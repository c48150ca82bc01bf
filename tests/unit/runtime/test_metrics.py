from __future__ import annotations

import pytest

from overproof.core.clock import ManualClock
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind
from overproof.results.views import Claim, EndKind, KindStatus, Progress
from overproof.runtime.metrics import ALL, MetricsHooks
from tests.builders import a_network


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> MetricsHooks:
    return MetricsHooks("trainer", clock=clock)


@pytest.fixture
def claim() -> Claim:
    return Claim(JobSpec.of((a_network(),)), 1, 1, "me", 60.0, {})


def lines(metrics: MetricsHooks) -> list[str]:
    return metrics.exposition().decode().splitlines()


def test_job_from_start_to_end(metrics: MetricsHooks, claim: Claim) -> None:
    metrics.after_start(claim)
    running = lines(metrics)
    metrics.after_end(claim, EndKind.SUCCEEDED, 42.0)
    ended = lines(metrics)

    assert 'overproof_jobs_in_flight{kind="train"} 1.0' in running
    assert 'overproof_jobs_in_flight{kind="train"} 0.0' in ended
    name = "overproof_job_duration_seconds"
    assert f'{name}_sum{{kind="train",outcome="succeeded"}} 42.0' in ended
    assert f'{name}_count{{kind="train",outcome="succeeded"}} 1.0' in ended


def test_lost_job_is_no_longer_in_flight(metrics: MetricsHooks, claim: Claim) -> None:
    metrics.after_start(claim)
    metrics.after_lost(claim)

    assert 'overproof_jobs_in_flight{kind="train"} 0.0' in lines(metrics)
    assert 'overproof_lease_lost_total{kind="train"} 1.0' in lines(metrics)


def test_progress_and_numbers_of_the_running_job(metrics: MetricsHooks, claim: Claim) -> None:
    metrics.after_progress(claim, Progress(30, 120, {"loss": 0.5}))

    assert 'overproof_job_progress_ratio{kind="train"} 0.25' in lines(metrics)
    assert 'overproof_job_scalar{kind="train",name="loss"} 0.5' in lines(metrics)


def test_names_of_numbers_cannot_grow_without_end(metrics: MetricsHooks, claim: Claim) -> None:
    for number in range(1000):
        metrics.after_progress(claim, Progress(1, 1, {f"loss-{number}": 0.5}))

    scalars = [line for line in lines(metrics) if line.startswith("overproof_job_scalar{")]
    assert len(scalars) == 32


def test_age_of_the_loop_grows_until_it_turns(metrics: MetricsHooks, clock: ManualClock) -> None:
    clock.advance(7)
    old = lines(metrics)
    metrics.after_turn()

    assert 'overproof_loop_age_seconds{service="trainer"} 7.0' in old
    assert 'overproof_loop_age_seconds{service="trainer"} 0.0' in lines(metrics)


def test_survey_and_dead_letters(metrics: MetricsHooks) -> None:
    metrics.after_survey([KindStatus(JobKind.TRAIN, False, True, 5, ready=3, running=2, wanted=5)])
    metrics.after_dead_letter("jobs.train", "malformed")
    metrics.after_outage("bus")
    metrics.after_recompute(0.2)

    shown = lines(metrics)
    assert 'overproof_jobs{kind="train",state="ready"} 3.0' in shown
    assert 'overproof_jobs{kind="train",state="running"} 2.0' in shown
    assert 'overproof_breaker_open{kind="train"} 1.0' in shown
    assert 'overproof_dead_letters_total{reason="malformed",topic="jobs.train"} 1.0' in shown
    assert 'overproof_outages_total{backend="bus"} 1.0' in shown
    assert "overproof_recompute_duration_seconds_count 1.0" in shown


def test_list_of_metrics_is_what_is_exposed(metrics: MetricsHooks, claim: Claim) -> None:
    exposed = {
        line.split()[2]: line.split()[3]
        for line in lines(metrics)
        if line.startswith("# TYPE overproof_") and not line.split()[2].endswith("_created")
    }

    assert exposed == {metric.name: metric.kind for metric in ALL}
    assert all("job_id" not in metric.labels for metric in ALL)
