"""The release whose model the trial of an API asked."""

from alembic import op
import sqlalchemy as sa

revision = "0071"
down_revision = "0070"


def upgrade() -> None:
    op.add_column("api_trials", sa.Column("release_id", sa.Uuid()))
    name = op.f("fk_api_trials_release_id")
    op.create_foreign_key(name, "api_trials", "releases", ["release_id"], ["id"], ondelete="SET NULL")
    op.create_index(op.f("ix_api_trials_release_id"), "api_trials", ["release_id"])


def downgrade() -> None:
    op.drop_column("api_trials", "release_id")
