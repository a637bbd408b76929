"""What is counted often is read from less: a trial's answers, and how tasks ended."""

from alembic import op
import sqlalchemy as sa

revision = "0067"
down_revision = "0066"

_CORRECT = """jsonb_array_length(jsonb_path_query_array(questions, '$[*]?(@."correct" == true)'))"""
_COUNTED = ["id", "state", "scenario", "release_id", "score", "turns", "generated_tokens", "started_at"]
_ENDED = sa.text("finished_at IS NOT NULL")


def upgrade() -> None:
    # generated, so that they are right for the rows there are, and for those that an earlier version still writes
    for name, count in {"correct": _CORRECT, "asked": "jsonb_array_length(questions)"}.items():
        op.add_column(
            "api_trials", sa.Column(name, sa.Integer(), sa.Computed(count, persisted=True), nullable=False)
        )
    _index_ended([*_COUNTED, "stop", "reads_only", "repairs"])
    op.create_index(
        "ix_tasks_skill_runs", "tasks", ["project_id", "id"], postgresql_where=sa.text("skill_run IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_skill_runs", "tasks")
    _index_ended(_COUNTED)
    op.drop_column("api_trials", "asked")
    op.drop_column("api_trials", "correct")


def _index_ended(columns: list[str]) -> None:
    op.drop_index("ix_tasks_finished", "tasks")
    op.create_index(
        "ix_tasks_finished",
        "tasks",
        ["project_id", "finished_at"],
        postgresql_include=columns,
        postgresql_where=_ENDED,
    )
