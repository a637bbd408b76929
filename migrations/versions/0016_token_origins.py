"""APIs name the origins that get their token, besides that of their server."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column(
        "apis", sa.Column("token_origins", postgresql.ARRAY(sa.Text()), nullable=False, server_default="{}")
    )


def downgrade() -> None:
    op.drop_column("apis", "token_origins")
