"""The migrations: schema, data, refusals and failures."""

import json
import threading
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import NullPool, create_engine, inspect, select, text
from sqlalchemy.orm import Session

from app.db.migrate import alembic_config, migrate
from app.db.tables import Skill, SkillState
from app.errors import DatabaseError
from app.gateway.skill_manifest import SkillManifest
from app.run_settings import read_settings
from app.skills.admission import stored_manifest

_FAILING = '''"""One table, then a mistake."""

from alembic import op

revision = "9999"
down_revision = "{parent}"


def upgrade() -> None:
    op.execute("CREATE TABLE half (id int)")
    op.execute("SELECT nonsense")
'''


def _tables(url: str) -> set[str]:
    engine = create_engine(url, poolclass=NullPool)
    return set(inspect(engine).get_table_names())


def test_models_and_migrations_agree(database_url: str) -> None:
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        command.check(alembic_config(connection))  # raises if a migration is missing


def test_the_schema_can_be_downgraded_and_upgraded_again(empty_database_url: str) -> None:
    migrate(empty_database_url)
    before = _tables(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert _tables(empty_database_url) == {"alembic_version"}
    migrate(empty_database_url)
    assert _tables(empty_database_url) == before
    assert "tasks" in before


_PROJECT = "00000000-0000-0000-0000-000000000001"
_OLD_SETTINGS = {
    "skill": {"name_only_use": False, "steps": 3},
    "skill_by_name": {"reward": "skill", "name_only_use": True},
    "outcome": {"reward": "outcome", "name_only_use": True},
    "chain": {"reward": "chain"},
}


def test_stored_run_settings_name_their_reward_and_can_be_read(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        config = alembic_config(connection)
        command.upgrade(config, "0005")
        connection.execute(text(f"INSERT INTO projects (id, name, skill_rev) VALUES ('{_PROJECT}', 'old', 0)"))
        for settings in _OLD_SETTINGS.values():
            connection.execute(_OLD_RUN, {"settings": json.dumps(settings)})
        connection.execute(_OLD_SCHEDULE, {"settings": json.dumps(_OLD_SETTINGS["skill_by_name"])})
    migrate(empty_database_url)
    with engine.begin() as connection:
        stored = [*connection.scalars(text("SELECT settings FROM training_runs ORDER BY created_at"))]
        assert [read_settings(each).reward for each in stored] == [*_OLD_SETTINGS]
        assert stored[0] == {"reward": "skill", "steps": 3, "canary_percent": 0}, (
            "what was stored before canaries gets none"
        )
        scheduled = connection.scalars(text("SELECT settings FROM schedules")).one()
        assert scheduled == {"reward": "skill_by_name", "canary_percent": 0}
        command.downgrade(alembic_config(connection), "0005")
        stored = [*connection.scalars(text("SELECT settings FROM training_runs ORDER BY created_at"))]
        assert stored[1] == _OLD_SETTINGS["skill_by_name"]
        assert connection.scalars(text("SELECT rings FROM training_runs")).all() == [0] * 4


_OLD_RUN = text(
    f"""
    INSERT INTO training_runs (id, project_id, kind, settings, state, attempt, losses, lost_at, cancel_requested,
        step, steps, rings, created_at)
    VALUES (gen_random_uuid(), '{_PROJECT}', 'logged', CAST(:settings AS jsonb), 'queued', 0, 0, 0, false, 0, 0, 0,
        clock_timestamp())
    """
)
_OLD_SCHEDULE = text(
    f"""
    INSERT INTO schedules (id, project_id, every_hours, settings, enabled, scored_seen, rev)
    VALUES (gen_random_uuid(), '{_PROJECT}', 1, CAST(:settings AS jsonb), true, 0, 0)
    """
)


def test_adapters_of_an_earlier_version_belong_to_the_projects_that_have_them(empty_database_url: str) -> None:
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        command.upgrade(alembic_config(connection), "0005")
        for statement in _OLD_ADAPTERS.split(";"):
            connection.execute(text(statement))
    migrate(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        found = connection.execute(text("SELECT hash, right(project_id::text, 1) FROM adapters ORDER BY hash"))
        assert [tuple(row) for row in found] == [("gone", "0"), ("own", "1"), ("shared", None), ("trained", "2")]


_OLD_ADAPTERS = """
    INSERT INTO projects (id, name, skill_rev)
        SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'p' || n, 0 FROM generate_series(1, 2) n;
    INSERT INTO training_runs (id, project_id, kind, settings, state, attempt, losses, lost_at, cancel_requested,
        step, steps, rings, created_at)
        SELECT id, id, 'logged', '{}', 'done', 0, 0, 0, false, 0, 0, 0, now() FROM projects;
    INSERT INTO adapters (hash, base, rank, run_id) VALUES ('gone', 'seed', 4, NULL), ('own', 'seed', 4, NULL),
        ('shared', 'seed', 4, NULL), ('trained', 'seed', 4, '00000000-0000-0000-0000-000000000002');
    INSERT INTO releases (id, project_id, number, state, model)
        SELECT gen_random_uuid(), id, 2, 'candidate', 'shared' FROM projects;
    INSERT INTO releases (id, project_id, number, state, model)
        SELECT gen_random_uuid(), id, 3, 'candidate', 'own' FROM projects WHERE name = 'p1'
"""


def test_skills_of_an_earlier_version_stay_active_with_the_operations_they_recorded(
    empty_database_url: str,
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0010")
        connection.execute(text(f"INSERT INTO projects (id, name, skill_rev) VALUES ('{_PROJECT}', 'old', 1)"))
        connection.execute(_OLD_SKILL)
    migrate(empty_database_url)
    with Session(engine) as session:
        skill = session.scalars(select(Skill)).one()
        assert (skill.state, skill.held, skill.principal, skill.taint) == (SkillState.ACTIVE, False, "", "")
        assert stored_manifest(skill) == SkillManifest.unrestricted(["mail.list"])


_OLD_SKILL = text(
    f"""
    INSERT INTO skills (id, project_id, name, version, state, signature, source, apis, instruction, slots, rev)
    VALUES (gen_random_uuid(), '{_PROJECT}', 'greet', 1, 'active', '', '', '{{mail.list}}', '', '{{}}', 1)
    """
)


def test_a_downgrade_offers_only_skills_that_were_offered_to_all(empty_database_url: str) -> None:
    migrate(empty_database_url)
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO projects (id, name, skill_rev) VALUES ('{_PROJECT}', 'new', 1)"))
        for number, (state, actor) in enumerate(_STATES_BEFORE, start=1):
            connection.execute(_NEW_SKILL, {"version": number, "state": state, "actor": actor})
        connection.execute(text("INSERT INTO skill_sets VALUES ('h', '{a,b probation,c quarantined}')"))
        connection.execute(_MOVE)
        command.downgrade(alembic_config(connection), "0010")
        stored = connection.execute(text("SELECT version, state FROM skills ORDER BY version"))
        assert [row.state for row in stored] == [
            "superseded",
            "superseded",
            "active",
            "retired",
            "superseded",
            "deleted",
        ]
        assert connection.scalars(text("SELECT skills FROM skill_sets")).all() == [["a"]]
        assert connection.scalars(text("SELECT action FROM audit_entries")).all() == []
    migrate(empty_database_url)


_STATES_BEFORE = [
    ("quarantined", "server"),
    ("probation", "server"),
    ("active", "server"),
    ("retired", "key me"),
    ("retired", "canary"),  # in the earlier version, its name would stay retired
    ("deleted", "key me"),
]
_STATES_AFTER = ["superseded", "superseded", "active", "retired", "superseded", "deleted"]
_NEW_SKILL = text(
    f"""
    INSERT INTO skills (id, project_id, name, version, state, moved_by, signature, source, apis, instruction,
        slots, rev)
    VALUES (gen_random_uuid(), '{_PROJECT}', 'greet', :version, :state, :actor, '', '', '{{}}', '', '{{}}', 1)
    """
)
_MOVE = text(
    f"""
    INSERT INTO audit_entries (id, project_id, actor, action, detail)
    VALUES (gen_random_uuid(), '{_PROJECT}', 'server', 'skill moved', '{{}}')
    """
)


_ALL_EVENTS = ["approval.wanted", "task.done", "task.failed", "task.cancelled"]


def test_a_webhook_for_all_events_is_told_of_releases_too_and_one_for_some_is_not(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    given = {"all": _ALL_EVENTS, "some": _ALL_EVENTS[:2]}
    read = text("SELECT name, settings #> '{webhook,events}' FROM projects")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0028")
        for name, events in given.items():
            connection.execute(
                text(
                    "INSERT INTO projects (id, name, skill_rev, settings) "
                    "VALUES (gen_random_uuid(), :name, 0, CAST(:settings AS jsonb))"
                ),
                {"name": name, "settings": json.dumps({"weight": 2.0, "webhook": {"url": "x", "events": events}})},
            )
    migrate(empty_database_url)
    with engine.begin() as connection:
        told = {"all": [*_ALL_EVENTS, "release.rolled_back"], "some": _ALL_EVENTS[:2]}
        assert dict(map(tuple, connection.execute(read))) == told
        connection.execute(text("UPDATE projects SET settings = settings || '{\"watch_days\": 3}'"))
        command.downgrade(alembic_config(connection), "0028")
        assert dict(map(tuple, connection.execute(read))) == given
        assert "watch_days" not in str(connection.scalars(text("SELECT settings FROM projects")).all())


def test_a_schedule_that_has_counted_the_scores_of_a_judge_does_not_wait_for_them_again(
    empty_database_url: str,
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0051")
        connection.execute(text(f"INSERT INTO projects (id, name, skill_rev) VALUES ('{_PROJECT}', 'old', 0)"))
        connection.execute(_OLD_SCHEDULE, {"settings": "{}"})
        connection.execute(text("UPDATE schedules SET scored_seen = 6"))
        connection.execute(_SCORED_TASKS)
    migrate(empty_database_url)
    with engine.begin() as connection:
        assert connection.scalars(text("SELECT scored_seen FROM schedules")).one() == 3


_SCORED_TASKS = text(
    f"""
    INSERT INTO tasks (id, project_id, instruction, variables, use_skills, state, score, score_source, checked,
        turns, generated_tokens, calls, cancel_requested, attempt, deaths)
    SELECT gen_random_uuid(), '{_PROJECT}', 'say hello', '{{}}', true, 'done', 1, source, false, 1, 1, 1, false,
        1, 0
    FROM unnest(ARRAY['person', 'check', NULL, 'judge', 'judge', 'judge']) source
    """
)


def test_the_answers_of_earlier_trials_are_counted(empty_database_url: str) -> None:
    questions = [{"correct": True, "turns": []}, {"correct": False}, {"correct": None}, {"correct": True}]
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        command.upgrade(alembic_config(connection), "0065")
        for statement in _OLD_TRIAL.split(";"):
            connection.execute(text(statement), {"questions": json.dumps(questions)} if ":q" in statement else {})
    migrate(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        assert connection.execute(text("SELECT correct, asked FROM api_trials")).all() == [(2, 4)]


_OLD_TRIAL = f"""
    INSERT INTO projects (id, name, skill_rev) VALUES ('{_PROJECT}', 'old', 0);
    INSERT INTO apis (id, project_id, name, source, digest, document)
    VALUES ('{_PROJECT}', '{_PROJECT}', 'desk', '', 'd', '{{}}');
    INSERT INTO api_trials (api_id, project_id, attempt, state, questions)
    VALUES ('{_PROJECT}', '{_PROJECT}', 1, 'done', CAST(:questions AS jsonb))
"""


def test_a_failing_migration_leaves_nothing_behind(empty_database_url: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(_FAILING.format(parent="0007"))
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with pytest.raises(Exception, match="nonsense"), engine.begin() as connection:  # noqa: PT012
        config = alembic_config(connection)
        shipped = Path(config.get_main_option("script_location") or "") / "versions"
        config.set_main_option("version_locations", f"{shipped}:{tmp_path}")
        config.set_main_option("path_separator", "os")
        command.upgrade(config, "9999")
    assert _tables(empty_database_url) == set()


def test_a_newer_schema_is_refused_and_left_alone(empty_database_url: str) -> None:
    migrate(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '2099'"))
    with pytest.raises(DatabaseError, match="2099, which this version does not know"):
        migrate(empty_database_url)


def test_two_processes_may_migrate_at_once(empty_database_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate(empty_database_url)
        except Exception as error:  # noqa: BLE001 - a thread would lose it
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert "tasks" in _tables(empty_database_url)


def test_a_refused_connection_is_described_in_one_line() -> None:
    with pytest.raises(DatabaseError, match=r"refused the connection: .*Check DATABASE_URL") as caught:
        migrate("postgresql://nobody@127.0.0.1:1/nothing")
    assert "\n" not in str(caught.value)
