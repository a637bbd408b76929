"""Tasks are found by their words, their release and what they repeat, and counted out of an index."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0036"
down_revision = "0035"

_COUNTED = ["id", "state", "scenario", "release_id", "score", "turns", "generated_tokens", "started_at"]
_ENDED = sa.text("finished_at IS NOT NULL")
_FILL = """
INSERT INTO task_words (task_id, project_id, created_at, words)
SELECT id, project_id, created_at, to_tsvector('simple', instruction) FROM tasks ORDER BY created_at
"""


def upgrade() -> None:
    op.add_column("tasks", sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("tasks", sa.Column("rerun_of", sa.Uuid()))
    op.create_foreign_key(op.f("fk_tasks_rerun_of"), "tasks", "tasks", ["rerun_of"], ["id"], ondelete="SET NULL")
    op.create_index("ix_tasks_rerun_of", "tasks", ["rerun_of"], postgresql_where=sa.text("rerun_of IS NOT NULL"))
    op.create_index(
        "ix_tasks_newest_release_id",
        "tasks",
        ["release_id", "created_at", "id"],
        postgresql_where=sa.text("release_id IS NOT NULL"),
    )
    op.drop_index("ix_tasks_finished", "tasks")
    op.create_index(
        "ix_tasks_finished",
        "tasks",
        ["project_id", "finished_at"],
        postgresql_include=_COUNTED,
        postgresql_where=_ENDED,
    )
    op.create_table(
        "task_words",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_task_words_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_task_words")),
    )
    op.execute(_FILL)
    op.create_index("ix_task_words_words", "task_words", ["words"], postgresql_using="gin")
    op.create_index("ix_task_words_listing", "task_words", ["project_id", "created_at", "task_id"])
    op.create_index("ix_task_words_newest", "task_words", ["created_at", "task_id"])
    op.create_table(
        "task_selections",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("record", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_task_selections_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_task_selections")),
    )


def downgrade() -> None:
    op.drop_table("task_selections")
    op.drop_table("task_words")
    op.drop_index("ix_tasks_finished", "tasks")
    op.create_index("ix_tasks_finished", "tasks", ["project_id", "finished_at"], postgresql_where=_ENDED)
    op.drop_index("ix_tasks_newest_release_id", "tasks")
    op.drop_index("ix_tasks_rerun_of", "tasks")
    op.drop_column("tasks", "rerun_of")
    op.drop_column("tasks", "pinned")
