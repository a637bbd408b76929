"""Whether a link began a session of the console."""

from alembic import op
import sqlalchemy as sa

revision = "0060"
down_revision = "0059"


def upgrade() -> None:
    op.add_column("sign_ins", sa.Column("by_link", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("sign_ins", "by_link")
