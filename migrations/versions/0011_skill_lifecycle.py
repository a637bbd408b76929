"""Skills have a manifest, a principal and more states; replays are evidence. Active skills stay active."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    for name in ("principal", "taint", "reason", "moved_by"):
        op.add_column("skills", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column(
        "skills", sa.Column("manifest", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True)
    )
    op.add_column("skills", sa.Column("former", sa.String(length=32), nullable=True))
    op.add_column("skills", sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("skills", sa.Column("violations", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_skills_release", "skills", ["release_id"])
    op.create_index("ix_tasks_principal", "tasks", ["project_id", "principal"])
    op.create_table(
        "skill_replays",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("matched", sa.Boolean(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name=op.f("fk_skill_replays_skill_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_skill_replays_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name=op.f("pk_skill_replays")),
    )
    op.create_index(op.f("ix_skill_replays_skill_id"), "skill_replays", ["skill_id"])


def downgrade() -> None:
    """Skills that have not proved themselves are offered no more; the agent may write them again."""
    op.execute(
        "UPDATE skills SET state = 'superseded'"
        " WHERE state IN ('quarantined', 'probation') OR (state = 'retired' AND moved_by = 'canary')"
    )
    op.execute(  # entries of skills that were not active have a state behind the id
        "UPDATE skill_sets SET skills = ARRAY(SELECT each FROM unnest(skills) each WHERE each NOT LIKE '% %')"
    )
    op.execute("DELETE FROM audit_entries WHERE action = 'skill moved'")
    op.drop_table("skill_replays")
    op.drop_index("ix_tasks_principal", "tasks")
    op.drop_index("ix_skills_release", "skills")
    for name in ("violations", "held", "former", "manifest", "moved_by", "reason", "taint", "principal"):
        op.drop_column("skills", name)
