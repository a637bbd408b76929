"""Secrets are encrypted: tokens of APIs, what calls of a running task were given, and values to bind."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("apis", sa.Column("token", sa.Text(), nullable=True))
    op.add_column(
        "apis",
        sa.Column("bind", postgresql.JSONB(astext_type=sa.Text()), nullable=False, server_default="{}"),
    )
    op.add_column("task_calls", sa.Column("sealed_arguments", sa.LargeBinary(), nullable=True))
    op.create_table(
        "secrets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_secrets_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_secrets")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_secrets_project_id")),
    )


def downgrade() -> None:
    """Tokens that were encrypted are lost: without the key they cannot be put back."""
    op.drop_table("secrets")
    op.drop_column("task_calls", "sealed_arguments")
    op.drop_column("apis", "bind")
    op.drop_column("apis", "token")
