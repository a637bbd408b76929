"""Skills that tasks would have been offered, had they not been chosen to do without."""

from alembic import op
import sqlalchemy as sa

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "withheld_skills",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_withheld_skills_task_id_tasks"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name=op.f("fk_withheld_skills_skill_id_skills"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name=op.f("pk_withheld_skills")),
    )
    op.create_index(op.f("ix_withheld_skills_skill_id"), "withheld_skills", ["skill_id"])


def downgrade() -> None:
    op.drop_table("withheld_skills")
