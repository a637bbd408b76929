"""Credentials of APIs by security scheme and principal."""

from alembic import op
import sqlalchemy as sa

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    op.create_table(
        "api_credentials",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("scheme", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("authorized", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("renewing_until", sa.DateTime(timezone=True)),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("failure", sa.Text()),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["api_id"], ["apis.id"], name=op.f("fk_api_credentials_api_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_credentials")),
        sa.UniqueConstraint("api_id", "scheme", "principal", name=op.f("uq_api_credentials_api_id")),
    )
    op.create_table(
        "oauth_attempts",
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("credential_id", sa.Uuid(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("redirect_url", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["credential_id"],
            ["api_credentials.id"],
            name=op.f("fk_oauth_attempts_credential_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("state", name=op.f("pk_oauth_attempts")),
    )


def downgrade() -> None:
    op.drop_table("oauth_attempts")
    op.drop_table("api_credentials")
