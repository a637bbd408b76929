"""Whether the instruction of a skill is a description of it, as that of an imported one is."""

from alembic import op
import sqlalchemy as sa

revision = "0064"
down_revision = "0063"


def upgrade() -> None:
    op.add_column("skills", sa.Column("described", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        "UPDATE skills SET described = true WHERE taint LIKE 'the imported folder %' AND slots::text = '[]'"
    )


def downgrade() -> None:
    op.drop_column("skills", "described")
