"""An index of the skills that lack vectors of an embedder, which is looked for all the time."""

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_index("ix_skills_embedder", "skills", ["state", "embedder"])


def downgrade() -> None:
    op.drop_index("ix_skills_embedder", "skills")
