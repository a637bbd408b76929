"""A version of the server that is newer by one migration, for tests of upgrades."""

import shutil
from pathlib import Path

import pytest

from app.db import migrate

_MIGRATION = '''"""One more column, filled from another."""

from alembic import op
import sqlalchemy as sa

revision = "9999"
down_revision = "{parent}"


def upgrade() -> None:
    op.add_column("projects", sa.Column("motto", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE projects SET motto = name || ' first'")
    {more}


def downgrade() -> None:
    op.drop_column("projects", "motto")
'''


def install_next_version(patch: pytest.MonkeyPatch, folder: Path, more: str = "") -> None:
    """Adds revision 9999 to what this process knows: it gives `projects` a column, and executes `more`."""
    parent = migrate.revisions()[0]
    newer = folder / "migrations"
    shutil.copytree(migrate._MIGRATIONS, newer, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (newer / "versions" / "9999_motto.py").write_text(_MIGRATION.format(parent=parent, more=more))
    patch.setattr(migrate, "_MIGRATIONS", newer)
    patch.setattr(migrate, "revisions", migrate.revisions.__wrapped__)  # which remembers those of before
    patch.setattr("app.db.migrate.revisions", migrate.revisions)
