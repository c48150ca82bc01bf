"""Plain registers beside the jobs: dead letters, assets, workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, not_, select, update

from overproof.core.ids import JobId
from overproof.core.refs import ArtifactRef
from overproof.errors import NotFound
from overproof.results.engine import Transaction, printable
from overproof.results.predicates import is_failed
from overproof.results.tables import assets, dead_letters, jobs, workers
from overproof.results.views import Asset, DeadLetter, WorkerView

REPORT_LIMIT_BYTES = 32 * 1024


def add_dead_letter(
    tx: Transaction,
    *,
    topic: str,
    reason: str,
    report: str,
    sha256: str,
    size_bytes: int,
    job_id: str | None,
) -> int:
    """See `ResultsRepository.add_dead_letter`."""
    tx.execute(
        tx.upsert(dead_letters)
        .values(
            topic=topic,
            reason=printable(reason),
            report=_cut(printable(report)),
            sha256=sha256,
            size_bytes=size_bytes,
            job_id=None if job_id is None else printable(job_id),
            received_at=tx.now,
        )
        .on_conflict_do_nothing()
    )
    found: int = tx.execute(
        select(dead_letters.c.id).where(
            dead_letters.c.topic == topic, dead_letters.c.sha256 == sha256
        )
    ).scalar_one()
    return found


def unburied(tx: Transaction, limit: int) -> list[JobId]:
    """See `ResultsRepository.unburied`."""
    found = tx.execute(
        select(jobs.c.id)
        .where(is_failed(), not_(jobs.c.buried))
        .order_by(jobs.c.ended_at, jobs.c.id)
        .limit(limit)
    ).scalars()
    return [JobId(job_id) for job_id in found]


def mark_buried(tx: Transaction, job_id: JobId, token: int) -> None:
    """See `ResultsRepository.mark_buried`."""
    tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.token == token, is_failed())
        .values(buried=True)
    )


def _cut(report: str) -> str:
    return report.encode()[:REPORT_LIMIT_BYTES].decode(errors="ignore")


def dead_letters_newest_first(tx: Transaction, limit: int) -> list[DeadLetter]:
    """See `ResultsRepository.dead_letters`."""
    rows = tx.execute(select(dead_letters).order_by(dead_letters.c.id.desc()).limit(limit))
    return [_dead_letter(row) for row in rows]


def dead_letter(tx: Transaction, dead_letter_id: int) -> DeadLetter:
    """See `ResultsRepository.dead_letter`."""
    row = tx.execute(select(dead_letters).where(dead_letters.c.id == dead_letter_id)).first()
    if row is None:
        raise _no_dead_letter(dead_letter_id)
    return _dead_letter(row)


def mark_replayed(tx: Transaction, dead_letter_id: int) -> None:
    """See `ResultsRepository.mark_replayed`."""
    changed = tx.execute(
        update(dead_letters).where(dead_letters.c.id == dead_letter_id).values(replayed_at=tx.now)
    ).rowcount
    if not changed:
        raise _no_dead_letter(dead_letter_id)


def drop_dead_letter(tx: Transaction, dead_letter_id: int) -> None:
    """See `ResultsRepository.drop_dead_letter`."""
    dropped = tx.execute(delete(dead_letters).where(dead_letters.c.id == dead_letter_id)).rowcount
    if not dropped:
        raise _no_dead_letter(dead_letter_id)


def _no_dead_letter(dead_letter_id: int) -> NotFound:
    return NotFound(f"no dead letter {dead_letter_id}; see `overproof dead-letters list`")


def _dead_letter(row: Any) -> DeadLetter:
    return DeadLetter(
        dead_letter_id=row.id,
        topic=row.topic,
        reason=row.reason,
        report=row.report,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        job_id=row.job_id,
        received_at=row.received_at,
        replayed_at=row.replayed_at,
    )


def add_asset(
    tx: Transaction, *, kind: str, name: str, ref: ArtifactRef, facts: Mapping[str, Any]
) -> None:
    """See `ResultsRepository.add_asset`."""
    tx.execute(
        tx.upsert(assets)
        .values(
            kind=kind,
            name=name,
            version=ref.sha256,
            ref=ref.model_dump(mode="json"),
            facts=dict(facts),
            created_at=tx.now,
        )
        # The same bytes once more are the latest version again, with what is now said of them.
        .on_conflict_do_update(
            index_elements=["kind", "name", "version"],
            set_={"created_at": tx.now} | ({"facts": dict(facts)} if facts else {}),
        )
    )


def asset(tx: Transaction, kind: str, name: str, version: str | None) -> Asset | None:
    """See `ResultsRepository.asset`."""
    query = select(assets).where(assets.c.kind == kind, assets.c.name == name)
    if version is not None:
        query = query.where(assets.c.version == version)
    row = tx.execute(query.order_by(assets.c.created_at.desc()).limit(1)).first()
    return None if row is None else _asset(row)


def assets_of(tx: Transaction, kind: str | None) -> list[Asset]:
    """See `ResultsRepository.assets`."""
    query = select(assets).order_by(assets.c.kind, assets.c.name, assets.c.created_at.desc())
    if kind is not None:
        query = query.where(assets.c.kind == kind)
    return [_asset(row) for row in tx.execute(query)]


def _asset(row: Any) -> Asset:
    return Asset(
        kind=row.kind,
        name=row.name,
        version=row.version,
        ref=ArtifactRef.model_validate(row.ref),
        facts=row.facts,
        created_at=row.created_at,
    )


def heartbeat(tx: Transaction, owner: str, kind: str, job_id: JobId | None) -> None:
    """See `ResultsRepository.heartbeat`."""
    values = {"kind": kind, "seen_at": tx.now, "job_id": job_id}
    tx.execute(
        tx.upsert(workers)
        .values(owner=owner, **values)
        .on_conflict_do_update(index_elements=["owner"], set_=values)
    )


def workers_seen(tx: Transaction, within_s: float) -> list[WorkerView]:
    """See `ResultsRepository.workers`."""
    rows = tx.execute(
        select(workers).where(workers.c.seen_at >= tx.now - within_s).order_by(workers.c.owner)
    )
    return [
        WorkerView(
            owner=row.owner,
            kind=row.kind,
            seen_at=row.seen_at,
            job_id=None if row.job_id is None else JobId(row.job_id),
        )
        for row in rows
    ]
