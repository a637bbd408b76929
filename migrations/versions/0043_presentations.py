"""How the operations of API documents are presented: in the rows of APIs, and in the tool sets of releases."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    for table, column in (("apis", "presentation"), ("tool_sets", "presentations")):
        op.add_column(
            table,
            sa.Column(column, postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        )


def downgrade() -> None:
    op.drop_column("tool_sets", "presentations")
    op.drop_column("apis", "presentation")
