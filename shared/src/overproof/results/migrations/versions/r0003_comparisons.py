"""Comparisons: numbers over several groups, and rows of metrics that belong to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and let a row of metrics belong to a comparison instead of a group."""
    op.create_table(
        "comparisons",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("stale", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
    )
    op.create_index(
        "ix_comparisons_stale",
        "comparisons",
        ["id"],
        unique=False,
        sqlite_where=sa.text("stale"),
        postgresql_where=sa.text("stale"),
    )
    op.create_table(
        "comparison_groups",
        sa.Column("comparison_id", sa.String(length=40), nullable=False),
        sa.Column("group_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["comparison_id"],
            ["comparisons.id"],
            name="fk_comparison_groups_comparison_id_comparisons",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name="fk_comparison_groups_group_id_groups"
        ),
        sa.PrimaryKeyConstraint("comparison_id", "group_id", name="pk_comparison_groups"),
    )
    op.create_index(
        "ix_comparison_groups_group_id", "comparison_groups", ["group_id"], unique=False
    )
    with op.batch_alter_table("metric_values") as batch:
        batch.alter_column("group_id", existing_type=sa.String(length=40), nullable=True)
        batch.add_column(sa.Column("comparison_id", sa.String(length=40), nullable=True))
        batch.create_foreign_key(
            "fk_metric_values_comparison_id_comparisons",
            "comparisons",
            ["comparison_id"],
            ["id"],
        )
        batch.create_check_constraint(
            op.f("ck_metric_values_owner"), "(group_id IS NULL) <> (comparison_id IS NULL)"
        )
        batch.create_index("ix_metric_values_comparison_id", ["comparison_id"])
