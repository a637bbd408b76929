"""Tasks may call one skill, instead of having the policy write code."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("skill_run", JSONB()))


def downgrade() -> None:
    op.drop_column("tasks", "skill_run")
