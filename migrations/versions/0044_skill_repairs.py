"""Skills that a changed API document may have broken are tested again, repaired or retired."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.create_table(
        "skill_repairs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("change_id", sa.Uuid(), nullable=False),
        sa.Column("was", sa.String(length=32), nullable=False),
        sa.Column("fits", sa.Boolean(), nullable=False),
        sa.Column("tested", sa.Boolean(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("tried", ARRAY(sa.Text()), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name=op.f("fk_skill_repairs_skill_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["change_id"], ["api_changes.id"], name=op.f("fk_skill_repairs_change_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_skill_repairs_task_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_skill_repairs"),
        sa.UniqueConstraint("skill_id", "change_id", name="uq_skill_repairs_skill_id"),
    )
    unfinished = sa.text("finished_at IS NULL")
    op.create_index("ix_skill_repairs_queue", "skill_repairs", ["next_at"], postgresql_where=unfinished)
    op.create_index("ix_skill_repairs_change_id", "skill_repairs", ["change_id"])
    op.create_index("ix_skill_repairs_task_id", "skill_repairs", ["task_id"])
    op.add_column("tasks", sa.Column("repairs", sa.Uuid(), nullable=True))
    op.create_index(
        "ix_tasks_repairs", "tasks", ["project_id", "created_at"], postgresql_where=sa.text("repairs IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_column("tasks", "repairs")
    op.drop_table("skill_repairs")
