"""Planning and submitting 10,000 jobs, on SQLite and on Postgres."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.record import Record
from overproof.bus.memory import MemoryBus
from overproof.core.clock import SystemClock
from overproof.core.spec import ExperimentSpec
from overproof.experiments.planner import batch, plan
from overproof.experiments.submit import submit
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.results.repository import ResultsRepository
from tests.databases import fresh_postgres

PREFIX = "planning"
LIMIT_S = 10.0
LIMIT_MB = 500.0

# 2 methods × 10 sizes × 170 seeds = 3,400 sets, as many networks, as many attack jobs: 10,200 jobs.
SPEC = ExperimentSpec.model_validate(
    {
        "name": "ten-thousand-jobs",
        "datasets": "digits",
        "methods": ["random", "dm"],
        "images_per_class": list(range(1, 11)),
        "networks": "convnet",
        "attacks": [{"name": "fgsm", "epsilons": ["2/255", "4/255", "8/255"]}],
        "seeds": list(range(170)),
    }
)


def run() -> list[Record]:
    """Both databases; Postgres where OVERPROOF_TEST_POSTGRES_URL names a server."""
    with tempfile.TemporaryDirectory() as folder:
        records = [_in_own_process("sqlite", f"sqlite:///{Path(folder) / 'results.db'}")]
    server = os.environ.get("OVERPROOF_TEST_POSTGRES_URL")
    if server:
        with fresh_postgres(server) as url:
            records.append(_in_own_process("postgres", url))
    peak_mb = max(peak for _, peak in records)
    return [
        *(record for record, _ in records),
        Record("planning.memory", peak_mb, "MB", "limit", LIMIT_MB),
    ]


def _in_own_process(database: str, url: str) -> tuple[Record, float]:
    # So that the peak of memory is that of planning, not of what was measured before.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, database, url).result()


def _measure(database: str, url: str) -> tuple[Record, float]:
    engine = create_engine(url)
    migrate(engine)
    repository = ResultsRepository(engine)
    started = time.perf_counter()
    experiment = plan(SPEC, lambda name: None)
    planned = time.perf_counter()
    submitted = submit(experiment, repository=repository, bus=MemoryBus(), clock=SystemClock())
    ended = time.perf_counter()
    repository.close()
    record = Record(
        f"planning.{database}",
        ended - started,
        "s",
        "limit",
        LIMIT_S,
        facts={
            "jobs": submitted.created,
            "units": len(experiment.units),
            "planning_s": round(planned - started, 2),
            "batches": len(batch(experiment.units)),
        },
    )
    return record, _peak_mb()


def _peak_mb() -> float:
    # Not getrusage: its peak is inherited from the process that started this one.
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) / 1024
