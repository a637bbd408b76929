"""Runner processes, and how often the runner of a task died."""

from alembic import op
import sqlalchemy as sa

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "runners",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_space", sa.Text(), nullable=False),
        sa.Column(
            "started_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "seen_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sandbox", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runners")),
    )
    op.add_column("tasks", sa.Column("deaths", sa.Integer(), server_default="0", nullable=False))
    op.add_column("tasks", sa.Column("alone", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_index(
        "ix_tasks_suspects",
        "tasks",
        ["lease_until"],
        postgresql_where=sa.text("deaths > 0 AND state = 'running'"),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_suspects", "tasks")
    op.drop_column("tasks", "alone")
    op.drop_column("tasks", "deaths")
    op.drop_table("runners")
