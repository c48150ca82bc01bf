"""Run by alembic; the connection, with its transaction begun, comes from `results.migrate`."""

from __future__ import annotations

from alembic import context

from overproof.results.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
