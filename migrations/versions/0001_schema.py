"""The schema of version 0.1.0. Later migrations change it; this one stays as it is."""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0001_schema"
down_revision = None

_TIME = sa.DateTime(timezone=True)
_NOW = sa.text("clock_timestamp()")
_WORD = sa.String(length=32)  # of a state or a kind
_JSON = postgresql.JSON(astext_type=sa.Text())  # keeps the order of keys
_JSONB = postgresql.JSONB(astext_type=sa.Text())
_API_TERMS = """
CREATE FUNCTION skill_api_terms(apis text[]) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT apis || ARRAY(SELECT DISTINCT split_part(each, '.', 1) FROM unnest(apis) AS each)
$$
"""
_APPEND = """
CREATE FUNCTION append_task_events(of_task uuid, new jsonb) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    last integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(of_task::text, 0));
    SELECT coalesce(max(seq), 0) INTO last FROM task_events WHERE task_id = of_task;
    INSERT INTO task_events (task_id, seq, kind, data)
        SELECT of_task, last + number, event ->> 0, event -> 1
        FROM jsonb_array_elements(new) WITH ORDINALITY AS given (event, number);
    PERFORM pg_notify('sage_events', of_task::text);
    RETURN last + jsonb_array_length(new);
END
$$
"""
_TABLES = """
    projects prompt_texts runners skill_sets tool_documents tool_sets worker_environments apis datasets
    exams hosted_models keys project_turns project_usage retention_marks schedules secrets api_changes
    api_credentials sign_ins training_runs adapters oauth_attempts releases run_logs run_steps api_trials
    audit_entries evaluations tasks approvals exam_tasks feedback placed_tasks run_tasks shadows skills
    task_calls task_events task_selections task_turns task_words trajectories verifications
    webhook_deliveries skill_offers skill_repairs skill_replays withheld_skills
"""


def upgrade() -> None:
    op.execute(_API_TERMS)
    op.execute(_APPEND)
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("skill_rev", sa.BigInteger(), nullable=False),
        sa.Column("settings", _JSONB, server_default="{}", nullable=False),
        sa.Column("webhook_secret", sa.Text()),
        sa.Column("verifier_secret", sa.Text()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("name", name="uq_projects_name"),
    )
    op.create_table(
        "prompt_texts",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_prompt_texts"),
    )
    op.create_table(
        "runners",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_space", sa.Text(), nullable=False),
        sa.Column("started_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("seen_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("generating", sa.Integer(), server_default="0", nullable=False),
        sa.Column("waiting", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sandbox", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text()),
        sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("faults", _JSONB, server_default="{}", nullable=False),
        sa.Column("loop_failures", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("loop_restarts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("dropped_lines", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runners"),
    )
    op.create_table(
        "skill_sets",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("skills", sa.ARRAY(sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_skill_sets"),
    )
    op.create_table(
        "tool_documents",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_tool_documents"),
    )
    op.create_table(
        "tool_sets",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("documents", _JSONB, nullable=False),
        sa.Column("presentations", _JSONB, server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_tool_sets"),
    )
    op.create_table(
        "worker_environments",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("options", _JSONB, nullable=False),
        sa.Column("reported_at", _TIME, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("worker", "name", name="pk_worker_environments"),
    )
    op.create_table(
        "apis",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("server", sa.Text()),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("bind", _JSONB, server_default="{}", nullable=False),
        sa.Column("secrets_for", sa.Text()),
        sa.Column("token_origins", sa.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("presentation", _JSONB, server_default="{}", nullable=False),
        sa.Column("checked_at", _TIME),
        sa.Column("check_failure", sa.Text()),
        sa.Column("refresh_at", _TIME),
        sa.Column("refresh_tries", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_apis_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_apis"),
        sa.UniqueConstraint("project_id", "name", name="uq_apis_project_id"),
    )
    _index("ix_apis_refresh", "apis", ["refresh_at"], where="refresh_at IS NOT NULL")
    op.create_table(
        "datasets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("conversations", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_datasets_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("project_id", "digest", name="uq_datasets_project_id"),
    )
    op.create_table(
        "exams",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source", _WORD, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_exams_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_exams"),
        sa.UniqueConstraint("project_id", "name", "version", name="uq_exams_project_id"),
    )
    op.create_table(
        "hosted_models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("price_in", sa.Double()),
        sa.Column("price_out", sa.Double()),
        sa.Column("abilities", _JSONB),
        sa.Column("probed_at", _TIME),
        sa.Column("failure", sa.Text()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_hosted_models_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_hosted_models"),
        sa.UniqueConstraint("project_id", "name", name="uq_hosted_models_project_id"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("project_id", sa.Uuid()),
        sa.Column("revoked_at", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_keys_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("hash", name="uq_keys_hash"),
    )
    op.create_table(
        "project_turns",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("turn", sa.Double()),
        _fk("fk_project_turns_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("project_id", name="pk_project_turns"),
    )
    op.create_table(
        "project_usage",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("writer", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("submitted", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cancelled", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("turns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("generated_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost", sa.Double(), server_default="0", nullable=False),
        sa.Column("other_cost", sa.Double(), server_default="0", nullable=False),
        _fk("fk_project_usage_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("project_id", "day", "writer", name="pk_project_usage"),
    )
    op.create_table(
        "retention_marks",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", _WORD, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        _fk("fk_retention_marks_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("project_id", "kind", name="pk_retention_marks"),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("every_hours", sa.Double()),
        sa.Column("every_scored_tasks", sa.Integer()),
        sa.Column("settings", _JSONB, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("next_at", _TIME),
        sa.Column("scored_seen", sa.BigInteger(), nullable=False),
        sa.Column("rev", sa.BigInteger(), nullable=False),
        sa.Column("fired_at", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.CheckConstraint("every_hours > 0", name=op.f("ck_schedules_every_hours")),
        sa.CheckConstraint("every_scored_tasks > 0", name=op.f("ck_schedules_every_scored_tasks")),
        sa.CheckConstraint("num_nonnulls(every_hours, every_scored_tasks) > 0", name=op.f("ck_schedules_ever")),
        _fk("fk_schedules_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("project_id", name="uq_schedules_project_id"),
    )
    op.create_table(
        "secrets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("used_at", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_secrets_project_id", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_secrets"),
        sa.UniqueConstraint("project_id", "name", name="uq_secrets_project_id"),
    )
    op.create_table(
        "api_changes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("added", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("removed", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("changed", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("eased", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("skills", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_api_changes_api_id", "api_id", "apis.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_api_changes"),
    )
    _index("ix_api_changes_api_id", "api_changes", ["api_id", "created_at"])
    op.create_table(
        "api_credentials",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("scheme", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("authorized", sa.Boolean(), nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("renewing_until", _TIME),
        sa.Column("connected_at", _TIME),
        sa.Column("wanted_scopes", sa.ARRAY(sa.Text())),
        sa.Column("used_at", _TIME),
        sa.Column("failed_at", _TIME),
        sa.Column("failure", sa.Text()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_api_credentials_api_id", "api_id", "apis.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_api_credentials"),
        sa.UniqueConstraint("api_id", "scheme", "principal", name="uq_api_credentials_api_id"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("link", sa.Boolean(), nullable=False),
        sa.Column("by_link", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_sign_ins_key_id", "key_id", "keys.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
        sa.UniqueConstraint("hash", name="uq_sign_ins_hash"),
    )
    _index("ix_sign_ins_expires_at", "sign_ins", ["expires_at"])
    _index("ix_sign_ins_key_id", "sign_ins", ["key_id"])
    op.create_table(
        "training_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("schedule_id", sa.Uuid()),
        sa.Column("kind", _WORD, nullable=False),
        sa.Column("settings", _JSONB, nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("lost_at", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("part", _JSONB),
        sa.Column("started_from", sa.Text()),
        sa.Column("learning_rate", sa.Double()),
        sa.Column("erased", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("result", _JSONB),
        sa.Column("started_at", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_training_runs_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_training_runs_schedule_id", "schedule_id", "schedules.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_training_runs"),
    )
    _index("ix_training_runs_listing", "training_runs", ["project_id", "created_at", "id"])
    _index("ix_training_runs_listing_state", "training_runs", ["project_id", "state", "created_at", "id"])
    _index("ix_training_runs_queue", "training_runs", ["created_at"], where="state IN ('queued', 'running')")
    _index("ix_training_runs_schedule_id", "training_runs", ["schedule_id"])
    _index("uq_training_runs_one_running", "training_runs", ["project_id"], unique=True, where="state = 'running'")
    op.create_table(
        "adapters",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("probe", _JSONB),
        sa.Column("run_id", sa.Uuid()),
        sa.Column("project_id", sa.Uuid()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_adapters_run_id", "run_id", "training_runs.id", "SET NULL"),
        sa.PrimaryKeyConstraint("hash", name="pk_adapters"),
    )
    _index("ix_adapters_run_id", "adapters", ["run_id"])
    op.create_table(
        "oauth_attempts",
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("credential_id", sa.Uuid(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("redirect_url", sa.Text(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        _fk("fk_oauth_attempts_credential_id", "credential_id", "api_credentials.id", "CASCADE"),
        sa.PrimaryKeyConstraint("state", name="pk_oauth_attempts"),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("removed_model", sa.Text()),
        sa.Column("skills", sa.Text()),
        sa.Column("tools", sa.Text()),
        sa.Column("prompt", sa.Text()),
        sa.Column("training_run_id", sa.Uuid()),
        sa.Column("evidence", _JSONB),
        sa.Column("canary_percent", sa.Double()),
        sa.Column("canary_at", _TIME),
        sa.Column("canary_shares", _JSONB),
        sa.Column("activated_at", _TIME),
        sa.Column("watched_against", sa.Uuid()),
        sa.Column("watched_since", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.CheckConstraint(
            "canary_percent > 0 AND canary_percent <= 100", name=op.f("ck_releases_canary_percent")
        ),
        _fk("fk_releases_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_releases_skills", "skills", "skill_sets.hash"),
        _fk("fk_releases_tools", "tools", "tool_sets.hash"),
        _fk("fk_releases_training_run_id", "training_run_id", "training_runs.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_releases"),
        sa.UniqueConstraint("project_id", "number", name="uq_releases_project_id"),
    )
    _index("ix_releases_skills", "releases", ["skills"])
    _index("ix_releases_tools", "releases", ["tools"])
    _index("ix_releases_training_run_id", "releases", ["training_run_id"])
    _index("uq_releases_one_active", "releases", ["project_id"], unique=True, where="state = 'active'")
    _index("uq_releases_one_canary", "releases", ["project_id"], unique=True, where="state = 'canary'")
    op.create_table(
        "run_logs",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("end", sa.Text(), nullable=False),
        _fk("fk_run_logs_run_id", "run_id", "training_runs.id", "CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_logs"),
    )
    op.create_table(
        "run_steps",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("metrics", _JSONB, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_run_steps_run_id", "run_id", "training_runs.id", "CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "index", name="pk_run_steps"),
    )
    op.create_table(
        "api_trials",
        sa.Column("api_id", sa.Uuid(), nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("inputs", sa.Text()),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("credentials", sa.Text()),
        sa.Column("questions", _JSONB, nullable=False),
        sa.Column(
            "correct",
            sa.Integer(),
            sa.Computed(
                "jsonb_array_length(jsonb_path_query_array(questions, '$[*]?(@.\"correct\" == true)'))",
                persisted=True,
            ),
            nullable=False,
        ),
        sa.Column(
            "asked", sa.Integer(), sa.Computed("jsonb_array_length(questions)", persisted=True), nullable=False
        ),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("next_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_api_trials_api_id", "api_id", "apis.id", "CASCADE"),
        _fk("fk_api_trials_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_api_trials_release_id", "release_id", "releases.id", "SET NULL"),
        sa.PrimaryKeyConstraint("api_id", name="pk_api_trials"),
    )
    _index("ix_api_trials_queue", "api_trials", ["project_id", "next_at"], where="finished_at IS NULL")
    _index("ix_api_trials_release_id", "api_trials", ["release_id"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid()),
        sa.Column("project", sa.Text()),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", _WORD, nullable=False),
        sa.Column("detail", _JSONB, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_audit_entries_release_id", "release_id", "releases.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
    )
    _index("ix_audit_entries_listing", "audit_entries", ["project_id", "created_at", "id"])
    _index("ix_audit_entries_newest", "audit_entries", ["created_at", "id"])
    _index("ix_audit_entries_release", "audit_entries", ["release_id", "created_at", "id"])
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid()),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("settings", _JSONB, nullable=False),
        sa.Column("figures", _JSONB, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_evaluations_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_evaluations_release_id", "release_id", "releases.id", "SET NULL"),
        _fk("fk_evaluations_run_id", "run_id", "training_runs.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_evaluations"),
    )
    _index("ix_evaluations_project_id", "evaluations", ["project_id"])
    _index("ix_evaluations_release_id", "evaluations", ["release_id"])
    _index("ix_evaluations_run_id", "evaluations", ["run_id"])
    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("rerun_of", sa.Uuid()),
        sa.Column("repairs", sa.Uuid()),
        sa.Column("reads_only", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("key_id", sa.Uuid()),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), server_default="", nullable=False),
        sa.Column("scenario", sa.Text()),
        sa.Column("variables", _JSONB, nullable=False),
        sa.Column("use_skills", sa.Boolean(), nullable=False),
        sa.Column("exploration", _WORD),
        sa.Column("check_code", sa.Text()),
        sa.Column("skill_run", _JSONB),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("request_digest", sa.Text()),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("stop", _WORD),
        sa.Column("answer", _JSONB),
        sa.Column("failure", sa.Text()),
        sa.Column("score", sa.Double()),
        sa.Column("score_source", _WORD),
        sa.Column("scored_by", sa.Uuid()),
        sa.Column("checked", sa.Boolean(), nullable=False),
        sa.Column("overruled_score", sa.Double()),
        sa.Column("lowest_score", sa.Double()),
        sa.Column("highest_score", sa.Double()),
        sa.Column("judged_by", sa.Text()),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("generated_tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost", sa.Double()),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("deaths", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lone_deaths", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lone_kills", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sandbox_failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("broken_answers", sa.Integer(), server_default="0", nullable=False),
        sa.Column("alone", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("prompt", sa.Text()),
        sa.Column("started_at", _TIME),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        sa.CheckConstraint("score BETWEEN 0 AND 1", name=op.f("ck_tasks_score")),
        _fk("fk_tasks_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_tasks_release_id", "release_id", "releases.id"),
        _fk("fk_tasks_rerun_of", "rerun_of", "tasks.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint("project_id", "idempotency_key", name="uq_tasks_project_id"),
    )
    _index("ix_tasks_contradicted", "tasks", ["project_id", "created_at", "id"], where="highest_score IS NOT NULL")
    _index(
        "ix_tasks_finished",
        "tasks",
        ["project_id", "finished_at"],
        postgresql_include=[
            "id",
            "state",
            "scenario",
            "release_id",
            "score",
            "turns",
            "generated_tokens",
            "started_at",
            "stop",
            "reads_only",
            "repairs",
        ],
        where="finished_at IS NOT NULL",
    )
    _index("ix_tasks_judged", "tasks", ["project_id", "judged_by"], where="judged_by IS NOT NULL")
    _index("ix_tasks_listing", "tasks", ["project_id", "created_at", "id"])
    _index(
        "ix_tasks_listing_scenario",
        "tasks",
        ["project_id", "scenario", "created_at", "id"],
        where="scenario IS NOT NULL",
    )
    _index("ix_tasks_listing_state", "tasks", ["project_id", "state", "created_at", "id"])
    _index("ix_tasks_listing_stop", "tasks", ["project_id", "stop", "created_at", "id"], where="stop IS NOT NULL")
    _index("ix_tasks_newest", "tasks", ["created_at", "id"])
    _index(
        "ix_tasks_newest_release_id", "tasks", ["release_id", "created_at", "id"], where="release_id IS NOT NULL"
    )
    _index("ix_tasks_newest_scenario", "tasks", ["scenario", "created_at", "id"], where="scenario IS NOT NULL")
    _index("ix_tasks_newest_state", "tasks", ["state", "created_at", "id"])
    _index("ix_tasks_newest_stop", "tasks", ["stop", "created_at", "id"], where="stop IS NOT NULL")
    _index("ix_tasks_principal", "tasks", ["project_id", "principal"])
    _index("ix_tasks_queue", "tasks", ["created_at"], where="state IN ('accepted', 'running')")
    _index("ix_tasks_release", "tasks", ["release_id", "started_at"])
    _index("ix_tasks_repairs", "tasks", ["project_id", "created_at"], where="repairs IS NOT NULL")
    _index("ix_tasks_rerun_of", "tasks", ["rerun_of"], where="rerun_of IS NOT NULL")
    _index("ix_tasks_running", "tasks", ["project_id", "lease_until"], where="state = 'running'")
    _index("ix_tasks_score", "tasks", ["score"], where="score IS NOT NULL")
    _index(
        "ix_tasks_scored",
        "tasks",
        ["project_id", "score"],
        postgresql_include=["score_source"],
        where="score IS NOT NULL",
    )
    _index("ix_tasks_skill_runs", "tasks", ["project_id", "id"], where="skill_run IS NOT NULL")
    _index("ix_tasks_suspects", "tasks", ["lease_until"], where="deaths > 0 AND state = 'running'")
    _index(
        "ix_tasks_waiting",
        "tasks",
        ["project_id", sa.literal_column("priority DESC"), "created_at", "id"],
        where="state = 'accepted'",
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("api", sa.Text(), nullable=False),
        sa.Column("arguments", _JSONB, nullable=False),
        sa.Column("shown", sa.Text()),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("decided_at", _TIME),
        sa.Column("decided_by", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_approvals_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_approvals_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    _index("ix_approvals_due", "approvals", ["expires_at"], where="state = 'waiting'")
    _index("ix_approvals_listing", "approvals", ["project_id", "created_at", "id"])
    _index("ix_approvals_listing_state", "approvals", ["project_id", "state", "created_at", "id"])
    _index("ix_approvals_newest", "approvals", ["created_at", "id"])
    _index("ix_approvals_newest_state", "approvals", ["state", "created_at", "id"])
    _index("ix_approvals_task_id", "approvals", ["task_id"])
    _index("uq_approvals_one_waiting", "approvals", ["task_id"], unique=True, where="state = 'waiting'")
    op.create_table(
        "exam_tasks",
        sa.Column("exam_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("scenario", sa.Text()),
        sa.Column("variables", _JSONB, nullable=False),
        sa.Column("check_code", sa.Text()),
        sa.Column("task_id", sa.Uuid()),
        _fk("fk_exam_tasks_exam_id", "exam_id", "exams.id", "CASCADE"),
        _fk("fk_exam_tasks_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("exam_id", "position", name="pk_exam_tasks"),
    )
    _index("ix_exam_tasks_task_id", "exam_tasks", ["task_id"])
    op.create_table(
        "feedback",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("comment", sa.Text()),
        sa.Column("author", sa.Text()),
        sa.Column("turn", sa.Integer()),
        sa.Column("lowest", sa.Double(), nullable=False),
        sa.Column("highest", sa.Double(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.CheckConstraint("score BETWEEN 0 AND 1", name=op.f("ck_feedback_score")),
        _fk("fk_feedback_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
    )
    _index("ix_feedback_task_id", "feedback", ["task_id"])
    op.create_table(
        "placed_tasks",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _fk("fk_placed_tasks_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", name="pk_placed_tasks"),
    )
    op.create_table(
        "run_tasks",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        _fk("fk_run_tasks_run_id", "run_id", "training_runs.id", "CASCADE"),
        _fk("fk_run_tasks_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "task_id", name="pk_run_tasks"),
    )
    _index("ix_run_tasks_task_id", "run_tasks", ["task_id"])
    op.create_table(
        "shadows",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("recorded", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("stop", sa.Text()),
        sa.Column("failure", sa.Text()),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("generated_tokens", sa.Integer(), nullable=False),
        sa.Column("same_changes", sa.Boolean()),
        sa.Column("record", sa.LargeBinary()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_shadows_release_id", "release_id", "releases.id", "CASCADE"),
        _fk("fk_shadows_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("release_id", "task_id", "recorded", name="pk_shadows"),
    )
    _index("ix_shadows_queue", "shadows", ["created_at"], where="finished_at IS NULL")
    _index("ix_shadows_task_id", "shadows", ["task_id"])
    op.create_table(
        "skills",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("apis", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("described", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("slots", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("scenario", sa.Text()),
        sa.Column("task_id", sa.Uuid()),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("taint", sa.Text(), server_default="", nullable=False),
        sa.Column("manifest", _JSONB),
        sa.Column("former", _WORD),
        sa.Column("held", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("violations", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("moved_by", sa.Text(), server_default="", nullable=False),
        sa.Column("embedder", sa.Text()),
        sa.Column("query_vector", sa.LargeBinary()),
        sa.Column("source_vector", sa.LargeBinary()),
        sa.Column("rev", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_skills_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_skills_release_id", "release_id", "releases.id"),
        _fk("fk_skills_task_id", "task_id", "tasks.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_skills"),
        sa.UniqueConstraint("project_id", "name", "version", name="uq_skills_project_id"),
    )
    _index("ix_skills_api_terms", "skills", [sa.literal_column("skill_api_terms(apis)")], postgresql_using="gin")
    _index("ix_skills_embedder", "skills", ["state", "embedder"])
    _index("ix_skills_listing", "skills", ["project_id", "created_at", "id"])
    _index(
        "ix_skills_listing_scenario",
        "skills",
        ["project_id", "scenario", "created_at", "id"],
        where="scenario IS NOT NULL",
    )
    _index("ix_skills_listing_state", "skills", ["project_id", "state", "created_at", "id"])
    _index("ix_skills_newest", "skills", ["created_at", "id"])
    _index("ix_skills_newest_name", "skills", ["name", "created_at", "id"])
    _index("ix_skills_newest_principal", "skills", ["principal", "created_at", "id"])
    _index("ix_skills_newest_scenario", "skills", ["scenario", "created_at", "id"], where="scenario IS NOT NULL")
    _index("ix_skills_newest_state", "skills", ["state", "created_at", "id"])
    _index("ix_skills_release", "skills", ["release_id"])
    _index("ix_skills_rev", "skills", ["project_id", "rev"])
    _index("ix_skills_task_id", "skills", ["task_id"])
    _index("uq_skills_one_active_version", "skills", ["project_id", "name"], unique=True, where="state = 'active'")
    op.create_table(
        "task_calls",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("api", sa.Text(), nullable=False),
        sa.Column("arguments", _JSONB, nullable=False),
        sa.Column("sealed_arguments", sa.LargeBinary()),
        sa.Column("repeatable", sa.Boolean(), nullable=False),
        sa.Column("record", sa.LargeBinary()),
        _fk("fk_task_calls_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "seq", name="pk_task_calls"),
    )
    op.create_table(
        "task_events",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", _JSONB, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_task_events_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "seq", name="pk_task_events"),
    )
    op.create_table(
        "task_selections",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("record", _JSONB, nullable=False),
        _fk("fk_task_selections_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", name="pk_task_selections"),
    )
    op.create_table(
        "task_turns",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        _fk("fk_task_turns_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "index", name="pk_task_turns"),
    )
    op.create_table(
        "task_words",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        _fk("fk_task_words_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", name="pk_task_words"),
    )
    _index("ix_task_words_listing", "task_words", ["project_id", "created_at", "task_id"])
    _index("ix_task_words_newest", "task_words", ["created_at", "task_id"])
    _index("ix_task_words_words", "task_words", ["words"], postgresql_using="gin")
    op.create_table(
        "trajectories",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_trajectories_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_trajectories_release_id", "release_id", "releases.id"),
        _fk("fk_trajectories_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_trajectories"),
        sa.UniqueConstraint("task_id", name="uq_trajectories_task_id"),
    )
    _index("ix_trajectories_project_id", "trajectories", ["project_id"])
    op.create_table(
        "verifications",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("problem", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("next_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_verifications_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_verifications_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", name="pk_verifications"),
    )
    _index("ix_verifications_leased", "verifications", ["project_id"], where="owner IS NOT NULL")
    _index("ix_verifications_queue", "verifications", ["project_id", "next_at"], where="state = 'pending'")
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid()),
        sa.Column("release_id", sa.Uuid()),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("next_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_webhook_deliveries_project_id", "project_id", "projects.id", "CASCADE"),
        _fk("fk_webhook_deliveries_release_id", "release_id", "releases.id", "CASCADE"),
        _fk("fk_webhook_deliveries_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    _index("ix_webhook_deliveries_finished", "webhook_deliveries", ["finished_at"])
    _index("ix_webhook_deliveries_leased", "webhook_deliveries", ["project_id"], where="owner IS NOT NULL")
    _index("ix_webhook_deliveries_listing", "webhook_deliveries", ["project_id", "created_at", "id"])
    _index(
        "ix_webhook_deliveries_listing_state", "webhook_deliveries", ["project_id", "state", "created_at", "id"]
    )
    _index("ix_webhook_deliveries_newest", "webhook_deliveries", ["created_at", "id"])
    _index("ix_webhook_deliveries_newest_state", "webhook_deliveries", ["state", "created_at", "id"])
    _index(
        "ix_webhook_deliveries_queue", "webhook_deliveries", ["project_id", "next_at"], where="state = 'pending'"
    )
    _index("ix_webhook_deliveries_release_id", "webhook_deliveries", ["release_id"])
    _index("ix_webhook_deliveries_task_id", "webhook_deliveries", ["task_id"])
    op.create_table(
        "skill_offers",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("ranks", _JSONB, nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("returned", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_skill_offers_skill_id", "skill_id", "skills.id", "CASCADE"),
        _fk("fk_skill_offers_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name="pk_skill_offers"),
    )
    _index("ix_skill_offers_latest", "skill_offers", ["skill_id", "created_at"])
    _index("ix_skill_offers_used", "skill_offers", ["skill_id", "created_at"], where="calls > 0")
    op.create_table(
        "skill_repairs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("change_id", sa.Uuid(), nullable=False),
        sa.Column("was", _WORD, nullable=False),
        sa.Column("fits", sa.Boolean(), nullable=False),
        sa.Column("tested", sa.Boolean(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Uuid()),
        sa.Column("tried", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("outcome", _WORD),
        sa.Column("next_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", _TIME),
        _fk("fk_skill_repairs_change_id", "change_id", "api_changes.id", "CASCADE"),
        _fk("fk_skill_repairs_skill_id", "skill_id", "skills.id", "CASCADE"),
        _fk("fk_skill_repairs_task_id", "task_id", "tasks.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_skill_repairs"),
        sa.UniqueConstraint("skill_id", "change_id", name="uq_skill_repairs_skill_id"),
    )
    _index("ix_skill_repairs_change_id", "skill_repairs", ["change_id"])
    _index("ix_skill_repairs_queue", "skill_repairs", ["next_at"], where="finished_at IS NULL")
    _index("ix_skill_repairs_task_id", "skill_repairs", ["task_id"])
    op.create_table(
        "skill_replays",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("matched", sa.Boolean(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_skill_replays_skill_id", "skill_id", "skills.id", "CASCADE"),
        _fk("fk_skill_replays_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name="pk_skill_replays"),
    )
    _index("ix_skill_replays_skill_id", "skill_replays", ["skill_id"])
    op.create_table(
        "withheld_skills",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        _fk("fk_withheld_skills_skill_id", "skill_id", "skills.id", "CASCADE"),
        _fk("fk_withheld_skills_task_id", "task_id", "tasks.id", "CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name="pk_withheld_skills"),
    )
    _index("ix_withheld_skills_latest", "withheld_skills", ["skill_id", "created_at"])


def downgrade() -> None:
    op.execute(f"DROP TABLE {', '.join(_TABLES.split())}")
    op.execute("DROP FUNCTION append_task_events, skill_api_terms")


def _fk(name: str, column: str, target: str, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=name, ondelete=ondelete)


def _index(name: str, table: str, columns: list[Any], *, where: str | None = None, **options: Any) -> None:
    op.create_index(name, table, columns, postgresql_where=None if where is None else sa.text(where), **options)
