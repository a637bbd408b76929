"""MCP servers tell that their tools have changed, and are asked for them again."""

from alembic import op
import sqlalchemy as sa

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column("apis", sa.Column("refresh_at", sa.DateTime(timezone=True)))
    op.add_column(
        "apis", sa.Column("refresh_tries", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.create_index("ix_apis_refresh", "apis", ["refresh_at"], postgresql_where=sa.text("refresh_at IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_apis_refresh", "apis")
    op.drop_column("apis", "refresh_tries")
    op.drop_column("apis", "refresh_at")
