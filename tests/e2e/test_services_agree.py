"""The four services on Kafka, S3 and Postgres give what embedded mode gives in SQLite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from overproof.artifacts import keys
from overproof.artifacts.manifest import Manifest
from overproof.core.clock import SystemClock
from overproof.core.spec import ExperimentSpec
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.results.repository import ResultsRepository
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.builders import an_experiment, no_added_datasets
from tests.e2e.deployment import (
    SERVICES,
    Deployment,
    cluster_deployment,
    embedded_deployment,
    results_of,
    succeeded,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# As the quickstart, smaller: every method of the pipeline's first version, all of it real.
SPEC = an_experiment(
    methods=["random", {"name": "dm", "params": {"iterations": 5, "real_batch": 16}}],
    whole_set=True,
    attacks=[
        {"name": "fgsm", "epsilons": ["8/255", "32/255"]},
        {"name": "pgd", "epsilons": ["16/255"], "params": {"steps": 3}},
    ],
)


def rows_of(repository: ResultsRepository) -> list[dict[str, Any]]:
    """All metric rows of the leaderboard and of its networks, in an order of their own."""
    groups = [row.group_id for row in repository.leaderboard()]
    networks = {
        unit.unit_id
        for experiment in repository.experiments()
        for unit in repository.units(experiment.experiment_id)
    }
    rows = [
        vars(row) | {"scope": row.scope.value} for row in repository.metrics({*groups, *networks})
    ]
    return sorted(rows, key=lambda row: (row["subject"], row["metric"], row["slice"]))


def run_embedded(spec: ExperimentSpec, home: Path) -> None:
    file = home.with_suffix(".json")
    file.write_text(json.dumps(spec.to_json()))
    environment = {**os.environ, "OVERPROOF_HOME": str(home), "OVERPROOF_DEVICE": "cpu"}
    subprocess.run(
        [Path(sys.executable).parent / "overproof", "run", str(file)],
        env=environment | {"OVERPROOF_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.postgres
def test_services_and_embedded_mode_agree_and_overlapping_experiments_share_their_units(
    tmp_path: Path, server_url: Callable[[str], str]
) -> None:
    run_embedded(SPEC, tmp_path / "embedded")
    with Backends.from_settings(Settings(home=tmp_path / "embedded")) as embedded:
        (experiment,) = embedded.repository.experiments()
        expected_rows = rows_of(embedded.repository)
        expected_results = {
            unit.unit_id: without_cost(unit.result)
            for unit in embedded.repository.units(experiment.experiment_id)
        }

    with cluster_deployment(tmp_path, server_url, preload="torch", lease_ttl_s="20") as cluster:
        for service in SERVICES:
            cluster.start(service)
        overlapping = an_experiment(
            **SPEC.model_dump(mode="json") | {"seeds": [1, 0], "name": "again"}
        )
        submitted = [
            submit(
                plan(spec, no_added_datasets),
                repository=cluster.backends.repository,
                bus=cluster.backends.bus,
                clock=SystemClock(),
            )
            for spec in (SPEC, overlapping)
        ]
        jobs = cluster.wait_finished(submitted[0].experiment_id, within_s=400)
        wait_for(
            lambda: rows_of(cluster.backends.repository) == expected_rows,
            within_s=60,
            otherwise=lambda: differences(rows_of(cluster.backends.repository), expected_rows),
        )

        assert succeeded(jobs)
        assert {job.token for job in jobs} == {1}
        assert submitted[1].created == 0
        assert results_of(cluster, submitted[0].experiment_id) == expected_results


def without_cost(result: Any) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "cost"}


def differences(actual: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> str:
    pairs = [(a, e) for a, e in zip(actual, expected, strict=False) if a != e]
    return f"{len(actual)} rows, {len(expected)} expected; first differences: {pairs[:3]}"


def test_distillation_killed_half_way_ends_in_the_same_bytes(
    embedded: Deployment, tmp_path: Path
) -> None:
    spec = an_experiment(
        methods=[{"name": "dm", "params": {"iterations": 200, "real_batch": 32}}], seeds=[0]
    )
    (unit,) = plan(spec, no_added_datasets).units[:1]
    repository = embedded.backends.repository
    submitted = embedded.submit([unit])
    (job,) = submitted.ready
    first = embedded.start("distiller", OVERPROOF_LEASE_TTL_S="3", OVERPROOF_PRELOAD="torch")

    def under_way() -> bool:
        progress = repository.job(job.job_id).progress
        return progress is not None and progress.step >= 20

    wait_for(under_way, within_s=120, otherwise=lambda: embedded.story(submitted.experiment_id))
    first.kill()
    embedded.start("distiller", OVERPROOF_PRELOAD="torch")
    (ended,) = embedded.wait_finished(submitted.experiment_id)
    assert ended.attempt == 2

    (tmp_path / "undisturbed").mkdir()
    with embedded_deployment(tmp_path / "undisturbed", preload="torch") as undisturbed:
        again = undisturbed.submit([unit])
        undisturbed.start("distiller")
        undisturbed.wait_finished(again.experiment_id)
        expected = manifest_of(undisturbed.backends, job.id).units[unit.id]

    made = manifest_of(embedded.backends, job.id).units[unit.id]
    assert made.files["images"].sha256 == expected.files["images"].sha256


def manifest_of(backends: Backends, job_id: str) -> Manifest:
    raw = backends.store.read(keys.manifest(job_id))
    assert raw is not None
    return Manifest.decode(raw)
