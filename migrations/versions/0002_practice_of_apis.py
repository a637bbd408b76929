"""APIs say what they are practised on, and how the real server differs from their document."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0002_practice_of_apis"
down_revision = "0001_schema"


def upgrade() -> None:
    op.add_column("apis", sa.Column("practice", sa.String(length=32), server_default="document", nullable=False))
    op.add_column("apis", sa.Column("comparison", postgresql.JSONB(astext_type=sa.Text())))


def downgrade() -> None:
    op.drop_column("apis", "comparison")
    op.drop_column("apis", "practice")
