"""Indexes of each listing and its filters, so that none reads a table whole."""

from alembic import op
import sqlalchemy as sa

revision = "0023"
down_revision = "0022"

_FILTERS = [  # table, column, whether rows without a value are left out
    ("tasks", "", False),
    ("tasks", "state", False),
    ("tasks", "stop", True),
    ("tasks", "scenario", True),
    ("skills", "", False),
    ("skills", "state", False),
    ("skills", "scenario", True),
    ("audit_entries", "", False),
    ("approvals", "", False),
    ("approvals", "state", False),
    ("webhook_deliveries", "", False),
    ("webhook_deliveries", "state", False),
]
_OTHERS = [
    ("ix_training_runs_listing_state", "training_runs", ["project_id", "state", "created_at", "id"], None),
    ("ix_audit_entries_release", "audit_entries", ["release_id", "created_at", "id"], None),
    ("ix_skills_newest_principal", "skills", ["principal", "created_at", "id"], None),
    ("ix_skills_newest_name", "skills", ["name", "created_at", "id"], None),
    ("ix_tasks_finished", "tasks", ["project_id", "finished_at"], sa.text("finished_at IS NOT NULL")),
    ("ix_tasks_score", "tasks", ["score"], sa.text("score IS NOT NULL")),
]
_SCORED = sa.text("score IS NOT NULL")
_API_TERMS = """
CREATE FUNCTION skill_api_terms(apis text[]) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT apis || ARRAY(SELECT DISTINCT split_part(each, '.', 1) FROM unnest(apis) AS each)
$$
"""


def upgrade() -> None:
    for table, column, sparse in _FILTERS:
        suffix, columns = _named(column)
        where = sa.text(f"{column} IS NOT NULL") if sparse else None
        op.create_index(f"ix_{table}_newest{suffix}", table, columns, postgresql_where=where)
        if column or table == "skills":  # the others have one
            op.create_index(f"ix_{table}_listing{suffix}", table, ["project_id", *columns], postgresql_where=where)
    for name, table, columns, where in _OTHERS:
        op.create_index(name, table, columns, postgresql_where=where)
    op.drop_index("ix_audit_entries_release_id", "audit_entries")  # the new one begins with the same column
    op.drop_index("ix_tasks_scored", "tasks")
    op.create_index("ix_tasks_scored", "tasks", ["project_id", "score"], postgresql_where=_SCORED)
    op.execute(_API_TERMS)
    op.create_index("ix_skills_api_terms", "skills", [sa.text("skill_api_terms(apis)")], postgresql_using="gin")


def downgrade() -> None:
    op.drop_index("ix_skills_api_terms", "skills")
    op.execute("DROP FUNCTION skill_api_terms")
    op.drop_index("ix_tasks_scored", "tasks")
    op.create_index("ix_tasks_scored", "tasks", ["project_id"], postgresql_where=_SCORED)
    op.create_index(op.f("ix_audit_entries_release_id"), "audit_entries", ["release_id"])
    for name, table, _, _ in reversed(_OTHERS):
        op.drop_index(name, table)
    for table, column, _ in reversed(_FILTERS):
        suffix, _ = _named(column)
        if column or table == "skills":
            op.drop_index(f"ix_{table}_listing{suffix}", table)
        op.drop_index(f"ix_{table}_newest{suffix}", table)


def _named(column: str) -> tuple[str, list[str]]:
    return (f"_{column}", [column, "created_at", "id"]) if column else ("", ["created_at", "id"])
