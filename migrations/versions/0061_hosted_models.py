"""Models that other servers host."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0061"
down_revision = "0060"


def upgrade() -> None:
    op.create_table(
        "hosted_models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("price_in", sa.Float()),
        sa.Column("price_out", sa.Float()),
        sa.Column("abilities", postgresql.JSONB()),
        sa.Column("probed_at", sa.DateTime(timezone=True)),
        sa.Column("failure", sa.Text()),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_hosted_models_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosted_models")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_hosted_models_project_id")),
    )


def downgrade() -> None:
    op.drop_table("hosted_models")
