"""The counts of a trial's answers beside them, which may be long."""

from alembic import op
import sqlalchemy as sa

revision = "0066"
down_revision = "0065"

_CORRECT = """jsonb_array_length(jsonb_path_query_array(questions, '$[*]?(@."correct" == true)'))"""


def upgrade() -> None:
    # generated, so that they are right for the rows there are, and for those that an earlier version still writes
    for name, count in {"correct": _CORRECT, "asked": "jsonb_array_length(questions)"}.items():
        op.add_column(
            "api_trials", sa.Column(name, sa.Integer(), sa.Computed(count, persisted=True), nullable=False)
        )


def downgrade() -> None:
    op.drop_column("api_trials", "asked")
    op.drop_column("api_trials", "correct")
