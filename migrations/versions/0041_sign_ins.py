"""People sign in to the console: their sessions, and the links that start them."""

from alembic import op
import sqlalchemy as sa

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("link", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_sign_ins_key_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
        sa.UniqueConstraint("hash", name="uq_sign_ins_hash"),
    )
    op.create_index("ix_sign_ins_key_id", "sign_ins", ["key_id"])
    op.create_index("ix_sign_ins_expires_at", "sign_ins", ["expires_at"])


def downgrade() -> None:
    op.drop_table("sign_ins")
