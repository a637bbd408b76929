"""The kinds of tasks without a scenario, so that what is held out stays so."""

from alembic import op
import sqlalchemy as sa

revision = "0053"
down_revision = "0052"


def upgrade() -> None:
    op.create_table(
        "placed_tasks",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_placed_tasks_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_placed_tasks")),
    )


def downgrade() -> None:
    op.drop_table("placed_tasks")
