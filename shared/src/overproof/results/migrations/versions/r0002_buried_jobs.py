"""Which failures have their dead letter, so that one whose worker died untold gets it too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the mark; what failed before is taken as buried, since its letter may be dropped."""
    op.add_column(
        "jobs", sa.Column("buried", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    jobs = sa.table("jobs", sa.column("state", sa.String), sa.column("buried", sa.Boolean))
    op.execute(jobs.update().where(jobs.c.state == "FAILED").values(buried=True))
    op.create_index(
        "ix_jobs_unburied",
        "jobs",
        ["ended_at"],
        unique=False,
        sqlite_where=sa.text("state = 'FAILED' AND NOT buried"),
        postgresql_where=sa.text("state = 'FAILED' AND NOT buried"),
    )
