"""Count what interrupts a task by its cause: deaths of runners that executed nothing else, and of the sandbox."""

from alembic import op
import sqlalchemy as sa

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    for name in ("lone_deaths", "sandbox_failures"):
        op.add_column("tasks", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.execute("UPDATE tasks SET lone_deaths = 1 WHERE state = 'running' AND alone AND deaths > 1")


def downgrade() -> None:
    for name in ("lone_deaths", "sandbox_failures"):
        op.drop_column("tasks", name)
