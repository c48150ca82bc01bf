"""Every Prometheus metric, in one place. No label ever holds a job id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from overproof.core.clock import Clock
from overproof.results.views import Claim, EndKind, KindStatus, Progress
from overproof.runtime.hooks import Hooks

_DURATIONS_S = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)


@dataclass(frozen=True)
class MetricName:
    """A metric as dashboards and alerts know it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


JOB_DURATION = MetricName(
    "overproof_job_duration_seconds",
    "histogram",
    ("kind", "outcome"),
    "Seconds from claim to end of attempts.",
)
JOBS_IN_FLIGHT = MetricName(
    "overproof_jobs_in_flight", "gauge", ("kind",), "Jobs that this process runs now."
)
JOB_PROGRESS = MetricName(
    "overproof_job_progress_ratio",
    "gauge",
    ("kind",),
    "Part of the running job that is done, in [0, 1].",
)
JOB_SCALAR = MetricName(
    "overproof_job_scalar",
    "gauge",
    ("kind", "name"),
    "Latest number that the running job reported, e.g. its loss.",
)
LEASE_LOST = MetricName(
    "overproof_lease_lost_total",
    "counter",
    ("kind",),
    "Attempts whose job was taken over by another worker.",
)
OUTAGES = MetricName(
    "overproof_outages_total",
    "counter",
    ("backend",),
    "Calls that bus, store or database did not answer.",
)
DEAD_LETTERS = MetricName(
    "overproof_dead_letters_total", "counter", ("topic", "reason"), "Messages put aside."
)
LOOP_AGE = MetricName(
    "overproof_loop_age_seconds",
    "gauge",
    ("service",),
    "Seconds since the main loop last went round.",
)
RECOMPUTE_DURATION = MetricName(
    "overproof_recompute_duration_seconds",
    "histogram",
    (),
    "Seconds to bring the metrics of a group up to date.",
)
JOBS = MetricName(
    "overproof_jobs", "gauge", ("kind", "state"), "Jobs that are ready or running, all processes."
)
BREAKER_OPEN = MetricName(
    "overproof_breaker_open", "gauge", ("kind",), "1 while failures in a row keep a kind stopped."
)

ALL = (
    JOB_DURATION,
    JOBS_IN_FLIGHT,
    JOB_PROGRESS,
    JOB_SCALAR,
    LEASE_LOST,
    OUTAGES,
    DEAD_LETTERS,
    LOOP_AGE,
    RECOMPUTE_DURATION,
    JOBS,
    BREAKER_OPEN,
)

# A handler that reports ever new names must not grow the registry without end.
_MAX_SCALARS = 32


class MetricsHooks(Hooks):
    """Counts what happens; `exposition` is what Prometheus reads.

    Args:
        service: name of the process's role.
        clock: measures the age of the loop.
    """

    def __init__(self, service: str, *, clock: Clock) -> None:
        self._clock = clock
        self._turned_at = clock.monotonic()
        self._scalars: set[tuple[str, str]] = set()
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._duration = _histogram(JOB_DURATION, registry)
        self._in_flight = _gauge(JOBS_IN_FLIGHT, registry)
        self._progress = _gauge(JOB_PROGRESS, registry)
        self._scalar = _gauge(JOB_SCALAR, registry)
        self._lost = _counter(LEASE_LOST, registry)
        self._outages = _counter(OUTAGES, registry)
        self._dead_letters = _counter(DEAD_LETTERS, registry)
        self._recompute = _histogram(RECOMPUTE_DURATION, registry)
        self._jobs = _gauge(JOBS, registry)
        self._breaker = _gauge(BREAKER_OPEN, registry)
        loop_age = _gauge(LOOP_AGE, registry)
        loop_age.labels(service).set_function(lambda: clock.monotonic() - self._turned_at)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def after_turn(self) -> None:
        """Reset the age of the loop."""
        self._turned_at = self._clock.monotonic()

    def after_start(self, claim: Claim) -> None:
        """One more in flight."""
        self._in_flight.labels(claim.job.kind).inc()

    def after_progress(self, claim: Claim, progress: Progress) -> None:
        """Gauges of the running job."""
        kind = claim.job.kind.value
        self._progress.labels(kind).set(progress.step / max(1, progress.total))
        for name, value in progress.scalars.items():
            if len(self._scalars) < _MAX_SCALARS or (kind, name) in self._scalars:
                self._scalars.add((kind, name))
                self._scalar.labels(kind, name).set(value)

    def after_end(self, claim: Claim, outcome: EndKind, seconds: float) -> None:
        """Duration; one fewer in flight."""
        self._duration.labels(claim.job.kind, outcome).observe(seconds)
        self._in_flight.labels(claim.job.kind).dec()

    def after_lost(self, claim: Claim) -> None:
        """One fewer in flight, and a lost lease."""
        self._lost.labels(claim.job.kind).inc()
        self._in_flight.labels(claim.job.kind).dec()

    def after_outage(self, backend: str) -> None:
        """Count it."""
        self._outages.labels(backend).inc()

    def after_dead_letter(self, topic: str, reason: str) -> None:
        """Count it."""
        self._dead_letters.labels(topic, reason).inc()

    def after_recompute(self, seconds: float) -> None:
        """Duration."""
        self._recompute.observe(seconds)

    def after_survey(self, kinds: Sequence[KindStatus]) -> None:
        """Gauges of the whole installation."""
        for status in kinds:
            self._jobs.labels(status.kind, "ready").set(status.ready)
            self._jobs.labels(status.kind, "running").set(status.running)
            self._breaker.labels(status.kind).set(status.breaker_open)


def _gauge(metric: MetricName, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _counter(metric: MetricName, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: MetricName, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        metric.name, metric.help, metric.labels, registry=registry, buckets=_DURATIONS_S
    )
