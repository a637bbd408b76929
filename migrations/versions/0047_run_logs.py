"""The end of the log of each training run, for API servers that do not share its worker's disk."""

from alembic import op
import sqlalchemy as sa

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    op.create_table(
        "run_logs",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("end", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["training_runs.id"], name=op.f("fk_run_logs_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_logs"),
    )


def downgrade() -> None:
    op.drop_table("run_logs")
