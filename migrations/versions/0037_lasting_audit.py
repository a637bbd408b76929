"""The audit log outlives the projects that it is about, and has entries about keys and projects."""

from alembic import op
import sqlalchemy as sa

revision = "0037"
down_revision = "0036"

_NAMES = """
UPDATE audit_entries SET project = projects.name FROM projects WHERE projects.id = audit_entries.project_id
"""


def upgrade() -> None:
    op.add_column("audit_entries", sa.Column("project", sa.Text()))
    op.execute(_NAMES)
    op.drop_constraint("fk_audit_entries_project_id", "audit_entries", type_="foreignkey")
    op.alter_column("audit_entries", "project_id", nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM audit_entries WHERE project_id IS NULL OR project_id NOT IN (SELECT id FROM projects)")
    op.alter_column("audit_entries", "project_id", nullable=False)
    op.create_foreign_key(
        op.f("fk_audit_entries_project_id"),
        "audit_entries",
        "projects",
        ["project_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.drop_column("audit_entries", "project")
