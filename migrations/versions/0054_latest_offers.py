"""Indexes of the latest tasks that were offered a skill, used it, or had to do without it."""

from alembic import op
import sqlalchemy as sa

revision = "0054"
down_revision = "0053"
_KEYS = ["skill_id", "created_at"]


def upgrade() -> None:
    op.add_column(
        "withheld_skills",
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False
        ),
    )
    op.execute(
        """
        UPDATE withheld_skills SET created_at = coalesce(tasks.started_at, tasks.created_at)
        FROM tasks WHERE tasks.id = withheld_skills.task_id
        """
    )
    for table in ("skill_offers", "withheld_skills"):
        op.create_index(f"ix_{table}_latest", table, _KEYS)
        op.drop_index(f"ix_{table}_skill_id", table)
    op.create_index("ix_skill_offers_used", "skill_offers", _KEYS, postgresql_where=sa.text("calls > 0"))


def downgrade() -> None:
    op.drop_index("ix_skill_offers_used", "skill_offers")
    for table in ("skill_offers", "withheld_skills"):
        op.create_index(f"ix_{table}_skill_id", table, ["skill_id"])
        op.drop_index(f"ix_{table}_latest", table)
    op.drop_column("withheld_skills", "created_at")
