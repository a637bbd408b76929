"""Projects have a webhook, and its messages are stored with the events they are about."""

from alembic import op
import sqlalchemy as sa

revision = "0012"
down_revision = "0011"

_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.add_column("projects", sa.Column("webhook_secret", sa.Text(), nullable=True))
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_webhook_deliveries_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_webhook_deliveries_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_listing", "webhook_deliveries", ["project_id", "created_at", "id"])
    op.create_index("ix_webhook_deliveries_finished", "webhook_deliveries", ["finished_at"])
    op.create_index(op.f("ix_webhook_deliveries_task_id"), "webhook_deliveries", ["task_id"])
    op.create_index(
        "ix_webhook_deliveries_queue",
        "webhook_deliveries",
        ["project_id", "next_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_webhook_deliveries_leased",
        "webhook_deliveries",
        ["project_id"],
        postgresql_where=sa.text("owner IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_column("projects", "webhook_secret")
