"""A finished task can be done again by any release on its recorded calls; feedback has a scale and a turn."""

from alembic import op
import sqlalchemy as sa

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("shadows", sa.Column("recorded", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.alter_column("shadows", "recorded", server_default=None)
    op.add_column("shadows", sa.Column("same_changes", sa.Boolean()))
    op.add_column("shadows", sa.Column("record", sa.LargeBinary()))
    op.drop_constraint("pk_shadows", "shadows")
    op.create_primary_key("pk_shadows", "shadows", ["release_id", "task_id", "recorded"])
    op.add_column("feedback", sa.Column("turn", sa.Integer()))
    op.add_column("feedback", sa.Column("lowest", sa.Float(), nullable=False, server_default="0"))
    op.add_column("feedback", sa.Column("highest", sa.Float(), nullable=False, server_default="1"))
    for name in ("lowest", "highest"):
        op.alter_column("feedback", name, server_default=None)


def downgrade() -> None:
    for name in ("highest", "lowest", "turn"):
        op.drop_column("feedback", name)
    op.execute("DELETE FROM shadows WHERE recorded")
    op.drop_constraint("pk_shadows", "shadows")
    op.create_primary_key("pk_shadows", "shadows", ["release_id", "task_id"])
    for name in ("record", "same_changes", "recorded"):
        op.drop_column("shadows", name)
