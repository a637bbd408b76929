"""Documents of APIs are fetched again, and their changes recorded."""

from alembic import op
import sqlalchemy as sa

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.add_column("apis", sa.Column("checked_at", sa.DateTime(timezone=True)))
    op.add_column("apis", sa.Column("check_failure", sa.Text()))
    op.create_table(
        "api_changes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("added", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("removed", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("changed", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("eased", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("skills", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["api_id"], ["apis.id"], name=op.f("fk_api_changes_api_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_changes")),
    )
    op.create_index("ix_api_changes_api_id", "api_changes", ["api_id", "created_at"])


def downgrade() -> None:
    op.drop_table("api_changes")
    op.drop_column("apis", "check_failure")
    op.drop_column("apis", "checked_at")
