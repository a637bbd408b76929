"""Trials of APIs: what the model answered when the server asked it about each."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0063"
down_revision = "0062"


def upgrade() -> None:
    op.create_table(
        "api_trials",
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("inputs", sa.Text(), nullable=True),
        sa.Column("credentials", sa.Text(), nullable=True),
        sa.Column("questions", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_api_trials_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["api_id"], ["apis.id"], name=op.f("fk_api_trials_api_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("api_id", name=op.f("pk_api_trials")),
    )
    unfinished = sa.text("finished_at IS NULL")
    op.create_index("ix_api_trials_queue", "api_trials", ["project_id", "next_at"], postgresql_where=unfinished)


def downgrade() -> None:
    op.drop_table("api_trials")
