"""The learning rate of a training run."""

from alembic import op
import sqlalchemy as sa

revision = "0068"
down_revision = "0067"


def upgrade() -> None:
    op.add_column("training_runs", sa.Column("learning_rate", sa.Float()))


def downgrade() -> None:
    op.drop_column("training_runs", "learning_rate")
