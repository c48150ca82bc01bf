"""What docs/deploy.md says: what can run here runs, names are those of code and manifests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from overproof.bus.topics import Group, Topic
from overproof.core.spec import JobSpec
from overproof.core.states import JobKind, JobState
from overproof.results.engine import create_engine
from overproof.results.migrate import migrate
from overproof.runtime.metrics import ALL
from overproof.runtime.settings import Settings, settings_table
from overproof.runtime.wiring import Backends
from scripts.testservers.installing import ensure_postgres, has_postgres
from tests.databases import fresh_postgres
from tests.deploy.manifests import K8S, ROOT, everything, templates, values_of
from tests.services.test_entry_points import submit
from tests.worker.tasks import a_probe, register

TEXT = (ROOT / "docs/deploy.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next of its rank."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def test_topics_and_group_that_a_user_of_kafka_needs_are_those_of_the_code() -> None:
    [step] = re.findall(r"\*\*Kafka\.\*\*(.*?)\n\n", TEXT, flags=re.DOTALL)

    topics = set(re.findall(r"`([a-z]+\.[a-z]+)`", step))

    assert topics | {f"dead.{topic}" for topic in topics} == {topic.value for topic in Topic}
    assert f"group `{Group.AGGREGATOR.value}`" in re.sub(r"\s+", " ", step)


def test_settings_metrics_and_components_that_are_named_exist() -> None:
    known = {row.variable for row in settings_table()}

    assert set(re.findall(r"OVERPROOF_[A-Z0-9_]+", TEXT)) <= known
    assert set(re.findall(r"overproof_\w+_total|overproof_breaker\w*", TEXT)) <= {
        metric.name for metric in ALL
    }
    components = set(
        re.findall(r"^   \| `([a-z-]+)` \|", section("Kubernetes in ten minutes"), re.M)
    )
    there = {folder.name for folder in (K8S / "components").iterdir()}
    secrets = {each for each in components if each.startswith("overproof-")}
    assert components - secrets == there


def test_secrets_that_are_to_be_made_are_those_that_manifests_name() -> None:
    rows = re.findall(r"^   \| `(overproof-[a-z0-9]+)` \| (.*?) \|", TEXT, flags=re.MULTILINE)
    told = {(name, key) for name, keys in rows for key in re.findall(r"`([\w.-]+)`", keys)}

    named = set()
    for combination, documents in everything():
        if "embedded-infrastructure" in combination or combination == "dev":
            continue
        for template in templates(documents).values():
            named |= {(ref["name"], ref["key"]) for ref in values_of(template, "secretKeyRef")}
        for references in values_of(documents, "secretTargetRef"):
            named |= {(ref["name"], ref["key"]) for ref in references}
        for name in values_of(documents, "secretName"):
            named |= {(name, "tls.crt"), (name, "tls.key")}

    assert named == told
    made = set(re.findall(r"create secret \w+ (overproof-[a-z0-9]+)", TEXT))
    assert made == {name for name, _ in told}


def test_every_proof_is_claimed_once() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section("What was proved, and how").splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| promise"))
    ]

    assert len(rows) > 15
    for promise, *cells in rows:
        assert sum(bool(cell) for cell in cells) == 1, promise


@pytest.mark.postgres
def test_a_copy_of_the_database_is_brought_back_with_its_running_jobs(
    server_url: Callable[[str], str], tmp_path: Path
) -> None:
    if not has_postgres():
        pytest.skip("pg_dump is not installed")
    register()
    unit = a_probe()
    job_id = JobSpec.of((unit,)).job_id
    with (
        fresh_postgres(server_url("POSTGRES")) as before,
        fresh_postgres(server_url("POSTGRES")) as after,
    ):
        with opened(before, tmp_path) as backends:
            submit(backends, unit)
            backends.repository.claim(JobKind.DISTILL, owner="lost", ttl_s=0.01)
        run("pg_dump", before, tmp_path)

        run("pg_restore", after, tmp_path)

        with opened(after, tmp_path) as backends:
            assert backends.repository.job(job_id).state is JobState.RUNNING
            claim = backends.repository.claim(JobKind.DISTILL, owner="new", ttl_s=60)
            [wanted] = [k.wanted for k in backends.repository.kind_status() if k.kind == "distill"]
    assert claim is not None
    assert (claim.job_id, claim.token, wanted) == (job_id, 2, 1)


def opened(url: str, folder: Path) -> Backends:
    """The back-ends of a database that is brought to today's schema."""
    engine = create_engine(url)
    migrate(engine)
    engine.dispose()
    return Backends.from_settings(Settings(home=folder, database_url=url))


def run(program: str, database: str, folder: Path) -> None:
    """Run the page's command that begins with `program`, word for word."""
    [command] = re.findall(rf"^{program} .*$", section("Backup and restore"), flags=re.MULTILINE)
    url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    path = f"{ensure_postgres()}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("sh") or "sh", "-c", command],
        cwd=folder,
        env={"PATH": path, "DATABASE": url},
        capture_output=True,
        text=True,
        check=False,
    )
    if "server version mismatch" in done.stderr:
        pytest.skip(f"{program} is older than the server")
    assert done.returncode == 0, done.stderr
