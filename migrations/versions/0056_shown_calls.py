"""What a person decides about a call by, encrypted."""

from alembic import op
import sqlalchemy as sa

revision = "0056"
down_revision = "0055"


def upgrade() -> None:
    op.add_column("approvals", sa.Column("shown", sa.Text()))


def downgrade() -> None:
    op.drop_column("approvals", "shown")
