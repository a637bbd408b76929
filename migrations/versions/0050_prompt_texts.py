"""What policies read around their tasks, so that the prompts of two releases can be compared."""

from alembic import op
import sqlalchemy as sa

revision = "0050"
down_revision = "0049"


def upgrade() -> None:
    op.create_table(
        "prompt_texts",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_prompt_texts"),
    )


def downgrade() -> None:
    op.drop_table("prompt_texts")
