"""First tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables, and one row of controls for each kind of job."""
    op.create_table(
        "assets",
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("ref", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "version", name="pk_assets"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("topic", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("replayed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
        sa.UniqueConstraint("topic", "sha256", name="uq_dead_letters_topic_sha256"),
    )
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("quota", sa.Integer(), nullable=True),
        sa.Column("cancelled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
    )
    op.create_index("ix_experiments_created_at", "experiments", ["created_at"], unique=False)
    op.create_table(
        "groups",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("task", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("unit_count", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("token", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.CheckConstraint("kind IN ('distill', 'train', 'attack')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint(
            "state <> 'RUNNING' OR lease_until IS NOT NULL", name=op.f("ck_jobs_lease")
        ),
        sa.CheckConstraint(
            "state IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')",
            name=op.f("ck_jobs_state"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index(
        "ix_jobs_queue",
        "jobs",
        ["kind", sa.literal_column("priority DESC"), "due_at"],
        unique=False,
        sqlite_where=sa.text("state IN ('READY', 'RUNNING')"),
        postgresql_where=sa.text("state IN ('READY', 'RUNNING')"),
    )
    op.create_index(
        "ix_jobs_running",
        "jobs",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("state = 'RUNNING'"),
        postgresql_where=sa.text("state = 'RUNNING'"),
    )
    op.create_index(
        "ix_jobs_waiting",
        "jobs",
        ["created_at"],
        unique=False,
        sqlite_where=sa.text("state = 'WAITING'"),
        postgresql_where=sa.text("state = 'WAITING'"),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"], unique=False)
    kind_controls = op.create_table(
        "kind_controls",
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("failures_in_a_row", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("breaker_open", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name="pk_kind_controls"),
    )
    op.create_table(
        "workers",
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("owner", name="pk_workers"),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=True),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id_jobs"),
        sa.PrimaryKeyConstraint("job_id", "token", name="pk_attempts"),
    )
    op.create_table(
        "experiment_jobs",
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name="fk_experiment_jobs_experiment_id_experiments",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_experiment_jobs_job_id_jobs"),
        sa.PrimaryKeyConstraint("experiment_id", "job_id", name="pk_experiment_jobs"),
    )
    op.create_index("ix_experiment_jobs_job_id", "experiment_jobs", ["job_id"], unique=False)
    op.create_table(
        "metric_values",
        sa.Column("subject", sa.String(length=40), nullable=False),
        sa.Column("metric", sa.String(length=100), nullable=False),
        sa.Column("slice", sa.Text(), nullable=False),
        sa.Column("group_id", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=20), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("unit", sa.String(length=40), nullable=False),
        sa.Column("present", sa.Integer(), nullable=False),
        sa.Column("expected", sa.Integer(), nullable=False),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name="fk_metric_values_group_id_groups"
        ),
        sa.PrimaryKeyConstraint("subject", "metric", "slice", name="pk_metric_values"),
    )
    op.create_index("ix_metric_values_group_id", "metric_values", ["group_id"], unique=False)
    op.create_table(
        "units",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("task", sa.String(length=100), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("group_id", sa.String(length=40), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("token", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("aggregated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint("state IN ('PENDING', 'DONE')", name=op.f("ck_units_state")),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name="fk_units_group_id_groups"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_units_job_id_jobs"),
        sa.PrimaryKeyConstraint("id", name="pk_units"),
    )
    op.create_index("ix_units_group_id", "units", ["group_id"], unique=False)
    op.create_index("ix_units_job_id", "units", ["job_id"], unique=False)
    op.create_index(
        "ix_units_to_aggregate",
        "units",
        ["group_id"],
        unique=False,
        sqlite_where=sa.text("state = 'DONE' AND NOT aggregated"),
        postgresql_where=sa.text("state = 'DONE' AND NOT aggregated"),
    )
    op.create_table(
        "experiment_units",
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("unit_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name="fk_experiment_units_experiment_id_experiments",
        ),
        sa.ForeignKeyConstraint(
            ["unit_id"], ["units.id"], name="fk_experiment_units_unit_id_units"
        ),
        sa.PrimaryKeyConstraint("experiment_id", "unit_id", name="pk_experiment_units"),
    )
    op.create_index("ix_experiment_units_unit_id", "experiment_units", ["unit_id"], unique=False)
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("unit_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_inputs_job_id_jobs"),
        sa.ForeignKeyConstraint(["unit_id"], ["units.id"], name="fk_job_inputs_unit_id_units"),
        sa.PrimaryKeyConstraint("job_id", "unit_id", name="pk_job_inputs"),
    )
    op.create_index("ix_job_inputs_unit_id", "job_inputs", ["unit_id"], unique=False)
    op.bulk_insert(kind_controls, [{"kind": kind} for kind in ("distill", "train", "attack")])
