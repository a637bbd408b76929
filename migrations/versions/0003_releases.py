"""Releases as units: what they are made of, canaries, shadows, and the log of who changed what serves."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    _sets()
    _releases()
    _audit_entries()
    _shadows()
    op.add_column("adapters", sa.Column("probe", _json(none_as_null=True), nullable=True))
    op.create_index("ix_tasks_release", "tasks", ["release_id", "started_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_tasks_release", "tasks")
    op.drop_column("adapters", "probe")
    op.drop_table("shadows")
    op.drop_table("audit_entries")
    op.drop_index("uq_releases_one_canary", table_name="releases")
    op.drop_constraint(op.f("ck_releases_canary_percent"), "releases")
    for name in ("canary_at", "canary_percent", "prompt", "tools", "skills"):
        op.drop_column("releases", name)
    op.execute("UPDATE releases SET state = 'candidate' WHERE state IN ('passed', 'canary')")
    op.drop_table("tool_documents")
    op.drop_table("tool_sets")
    op.drop_table("skill_sets")


def _sets() -> None:
    op.create_table(
        "skill_sets",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("skills", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_skill_sets")),
    )
    op.create_table(
        "tool_sets",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("documents", _json(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_tool_sets")),
    )
    op.create_table(
        "tool_documents",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tool_documents")),
    )


def _releases() -> None:
    for name in ("skills", "tools", "prompt"):
        op.add_column("releases", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("releases", sa.Column("canary_percent", sa.Double(), nullable=True))
    op.add_column("releases", sa.Column("canary_at", sa.DateTime(timezone=True), nullable=True))
    for name, table in (("skills", "skill_sets"), ("tools", "tool_sets")):
        op.create_foreign_key(op.f(f"fk_releases_{name}"), "releases", table, [name], ["hash"])
        op.create_index(op.f(f"ix_releases_{name}"), "releases", [name], unique=False)
    op.create_check_constraint("canary_percent", "releases", "canary_percent > 0 AND canary_percent <= 100")
    op.create_index(
        "uq_releases_one_canary",
        "releases",
        ["project_id"],
        unique=True,
        postgresql_where=sa.text("state = 'canary'"),
    )


def _audit_entries() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("detail", _json(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_audit_entries_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_audit_entries_release_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index("ix_audit_entries_listing", "audit_entries", ["project_id", "created_at", "id"], unique=False)
    op.create_index(op.f("ix_audit_entries_release_id"), "audit_entries", ["release_id"], unique=False)


def _shadows() -> None:
    op.create_table(
        "shadows",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("stop", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("generated_tokens", sa.Integer(), nullable=False),
        _created_at(),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_shadows_release_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_shadows_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("release_id", "task_id", name=op.f("pk_shadows")),
    )
    op.create_index(op.f("ix_shadows_task_id"), "shadows", ["task_id"], unique=False)
    op.create_index(
        "ix_shadows_queue",
        "shadows",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
    )


def _json(*, none_as_null: bool = False) -> postgresql.JSONB:
    return postgresql.JSONB(none_as_null=none_as_null, astext_type=sa.Text())


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )
