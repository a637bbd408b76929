"""The plans of listings over many rows: each reads an index and few pages, whatever it is filtered by."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.approvals import store as approvals
from app.base.values import Stop
from app.db.database import Database, open_database
from app.db.tables import ApprovalState, DeliveryState, RunState, SkillState, TaskState
from app.projects import audit, statistics, webhooks
from app.projects.statistics import TimeBucket
from app.releases import store as releases
from app.releases import trials_store
from app.runs import experience
from app.runs import store as runs
from app.skills import store as skills
from app.skills import value
from app.tasks import store as tasks
from tests.support import postgres
from tests.support.every_row import every_row

pytestmark = pytest.mark.slow  # to fill the tables takes longer than most files

_ROWS = 100_000
_MOST_PAGES = 1_000  # of 8 kB: a listing of 50 rows that are spread over all pages, and its index
PROJECT, _P2 = (UUID(int=number) for number in (1, 2))
_RELEASE, _COMMON_SKILL, _RARE_SKILL = (UUID(int=number) for number in (3, 4, 5))
NOW = datetime(2026, 1, 1, tzinfo=UTC)

Listing = Callable[[AsyncSession], Awaitable[object]]


@pytest.fixture(scope="module")
def full_url(server_url: str) -> Iterator[str]:
    """Two projects, of which the second has one row in a thousand, and few rows match the filters."""
    for url in postgres.migrated_database(server_url):
        with create_engine(url, poolclass=NullPool).begin() as connection:
            for statement in FILL:
                connection.execute(text(statement), {"rows": _ROWS} if ":rows" in statement else {})
        with create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text("VACUUM ANALYZE"))
        yield url


@pytest.fixture
async def full(full_url: str) -> AsyncIterator[Database]:
    async with open_database(full_url) as database:
        yield database


def _tasks(**only: Any) -> Listing:
    return lambda session: tasks.page(session, tasks.TaskFilter(**only))


def _skills(**only: Any) -> Listing:
    return lambda session: skills.page(session, skills.SkillFilter(**only))


def _approvals(**only: Any) -> Listing:
    return lambda session: approvals.page(session, approvals.ApprovalFilter(**only))


def _deliveries(project_id: UUID | None, state: DeliveryState | None) -> Listing:
    return lambda session: webhooks.page(session, project_id, state)


LISTINGS: dict[str, Listing] = {
    "tasks": _tasks(),
    "tasks of a project": _tasks(project_id=PROJECT),
    "tasks of a small project": _tasks(project_id=_P2),
    **{
        f"tasks{name} {what}": _tasks(**only, **project)
        for name, project in (
            ("", {}),
            (" of a project", {"project_id": PROJECT}),
            (" of a small one", {"project_id": _P2}),
        )
        for what, only in (
            ("in a common state", {"state": TaskState.DONE}),
            ("in a rare state", {"state": TaskState.WAITING}),
            ("with a common stop reason", {"stop": Stop.COMPLETED}),
            ("with a rare stop reason", {"stop": Stop.CANCELLED}),
            ("of a scenario", {"scenario": "s7"}),
            ("of no scenario", {"scenario": "none"}),
            ("with a score", {"min_score": 0.5}),
            ("with a rare score", {"min_score": 0.9999}),
            ("with a low score", {"max_score": 0.2}),
            ("with common words", {"words": "mails of today"}),
            ("with a word of some", {"words": "w7"}),
            ("with a rare word", {"words": "rarely"}),
            ("with a common and a rare word", {"words": "mails rarely"}),
            ("with a word of none", {"words": "never"}),
            ("of a release", {"release_id": _RELEASE}),
            ("of another release", {"release_id": _P2}),
            ("that were offered a common skill", {"skill_ids": [_COMMON_SKILL]}),
            ("that were offered a rare skill", {"skill_ids": [_RARE_SKILL]}),
            ("that were offered one of two skills", {"skill_ids": [_COMMON_SKILL, _RARE_SKILL]}),
            ("that repeat another", {"rerun_of": _P2}),
            ("in a window", {"created_after": NOW, "created_before": NOW + timedelta(seconds=100)}),
        )
    },
    **{
        f"skills{name} {what}": _skills(**only, **project)
        for name, project in (
            ("", {}),
            (" of a project", {"project_id": PROJECT}),
            (" of a small one", {"project_id": _P2}),
        )
        for what, only in (
            ("unfiltered", {}),
            ("in a common state", {"state": SkillState.ACTIVE}),
            ("in a rare state", {"state": SkillState.RETIRED}),
            ("of a principal", {"principal": "p7"}),
            ("of a name", {"name": "skill_7"}),
            ("of a scenario", {"scenario": "s7"}),
            ("of an operation", {"api": "app7.read"}),
            ("of an app", {"api": "app7"}),
            ("of the most common app", {"api": "mail"}),
        )
    },
    "skills without vectors": lambda session: skills.without_vectors(session, "words", 64),
    "runs of a project": lambda session: runs.page(session, PROJECT),
    "runs in a rare state": lambda session: runs.page(session, PROJECT, state=RunState.FAILED),
    "audit entries": lambda session: audit.page(session, None, limit=50),
    "audit entries of a project": lambda session: audit.page(session, PROJECT, limit=50),
    "audit entries of a small project": lambda session: audit.page(session, _P2, limit=50),
    "audit entries of a release": lambda session: audit.page(session, None, release_id=_RELEASE, limit=50),
    **{
        f"approvals{name} {what}": _approvals(**only, **project)
        for name, project in (
            ("", {}),
            (" of a project", {"project_id": PROJECT}),
            (" of a small one", {"project_id": _P2}),
        )
        for what, only in (("unfiltered", {}), ("in a rare state", {"state": ApprovalState.REFUSED}))
    },
    **{
        f"deliveries{name} {what}": _deliveries(project, state)
        for name, project in (("", None), (" of a project", PROJECT), (" of a small one", _P2))
        for what, state in (("unfiltered", None), ("in a rare state", DeliveryState.FAILED))
    },
    "failed calls of an API": lambda session: apis.failed_calls(session, PROJECT, "mail"),
    "the training window": lambda session: experience.window(session, PROJECT, limit=50),
}


@pytest.mark.parametrize("name", sorted(LISTINGS))
async def test_a_listing_reads_few_pages_by_an_index(full: Database, name: str) -> None:
    await _check_plan(full, LISTINGS[name])


async def test_a_watch_reads_the_latest_tasks_before_it_however_many_there_are(
    full: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_store, "_MOST_BEFORE", 50)

    async def before(session: AsyncSession) -> None:
        release = await releases.numbered(session, PROJECT, 1)
        assert len(await trials_store.tasks_before(session, release, NOW + timedelta(days=2))) == 50

    await _check_plan(full, before, most_pages=200)


async def test_the_first_page_counts_ended_tasks_without_reading_the_table(full: Database) -> None:
    counts: dict[str, Listing] = {
        "outcomes": lambda session: statistics.over_time(session, PROJECT, NOW, TimeBucket.DAY),
        "failed": lambda session: statistics.count_failed(session, PROJECT),
        "savings": lambda session: value.by_scenario(session, PROJECT, NOW),
    }
    with every_row() as row:
        for name, count in counts.items():
            with row(name):
                plan = await _plan(full, count)
                reads = [node for node in _nodes(plan) if node.get("Relation Name") == "tasks"]
                assert {node["Node Type"] for node in reads} == {"Index Only Scan"}
                assert "ix_tasks_finished" in {node["Index Name"] for node in reads}


async def _check_plan(full: Database, listing: Listing, most_pages: int = _MOST_PAGES) -> None:
    plan = await _plan(full, listing)
    kinds = {f"{node['Node Type']} {node.get('Relation Name', '')}" for node in _nodes(plan)}
    assert not {kind for kind in kinds if kind.startswith("Seq Scan") and kind.split()[-1] in _TABLES}, kinds
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert pages <= most_pages, json.dumps(plan, indent=1)


async def _plan(full: Database, listing: Listing) -> dict[str, Any]:
    """Of the statement with a limit."""
    statements: list[tuple[str, Any]] = []
    collect = _collect(statements)
    event.listen(full.engine.sync_engine, "before_cursor_execute", collect)
    async with full.sessions() as session:
        await listing(session)
    event.remove(full.engine.sync_engine, "before_cursor_execute", collect)
    [(statement, values)] = [each for each in statements if "LIMIT" in each[0]]
    async with full.engine.connect() as connection:
        explained = await connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values
        )
        return dict(explained.scalar_one()[0]["Plan"])


def _collect(statements: list[tuple[str, Any]]) -> Callable[..., None]:
    def collect(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        statements.append((statement, values))

    return collect


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


_TABLES = (
    "tasks",
    "task_words",
    "skill_offers",
    "skills",
    "training_runs",
    "audit_entries",
    "approvals",
    "webhook_deliveries",
    "task_events",
)
_PROJECT_OF = f"CASE WHEN n % 1000 = 0 THEN '{_P2}'::uuid ELSE '{PROJECT}'::uuid END"
_ANY_TASK = "(SELECT id FROM tasks LIMIT 1)"
_CREATED = f"'{NOW.isoformat()}'::timestamptz + n * interval '1 second'"
FILL = [
    f"INSERT INTO projects (id, name, skill_rev) VALUES ('{PROJECT}', 'large', 0), ('{_P2}', 'small', 0)",
    f"""
    INSERT INTO releases (id, project_id, number, state, model, activated_at)
    SELECT '{_RELEASE}', '{PROJECT}', 1, 'active', 'b', '{NOW.isoformat()}'
    """,
    f"""
    INSERT INTO tasks (id, project_id, created_at, instruction, scenario, variables, use_skills, state, stop,
        score, checked, turns, generated_tokens, calls, cancel_requested, attempt, started_at, finished_at)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, 'tidy up the mails of today, please: w' || n % 1000
        || CASE WHEN n % 30011 = 0 THEN ' rarely' ELSE '' END, 's' || n % 1000,
        '{{}}', true, CASE WHEN n % 30011 = 0 THEN 'waiting' ELSE 'done' END,
        CASE WHEN n % 30011 = 0 THEN NULL WHEN n % 20011 = 0 THEN 'cancelled' ELSE 'completed' END,
        CASE WHEN n % 20011 = 0 THEN 1 ELSE n % 100 / 100.0 END, false, 3, 100, 18, false, 1, {_CREATED},
        {_CREATED}
    FROM generate_series(1, :rows) n
    """,
    "INSERT INTO task_words SELECT id, project_id, created_at, to_tsvector('simple', instruction) FROM tasks",
    f"UPDATE tasks SET release_id = '{_RELEASE}' WHERE extract(second FROM created_at)::int % 10 = 3",
    f"""
    INSERT INTO skills (id, project_id, name, version, state, signature, source, apis, instruction, slots,
        principal, rev)
    SELECT id::uuid, '{PROJECT}', name, 1, 'active', '', '', '{{}}', '', '{{}}', '', 0
    FROM (VALUES ('{_COMMON_SKILL}', 'common'), ('{_RARE_SKILL}', 'rare')) AS given (id, name)
    """,
    f"""
    INSERT INTO skill_offers (task_id, skill_id, position, ranks, calls, returned)
    SELECT tasks.id, skill::uuid, 1, '{{}}', 1, 1
    FROM tasks, (VALUES ('{_COMMON_SKILL}'), ('{_RARE_SKILL}')) AS given (skill)
    WHERE skill = '{_COMMON_SKILL}' OR tasks.instruction LIKE '%rarely'
    """,
    f"""
    INSERT INTO skills (id, project_id, created_at, name, version, state, signature, source, apis, instruction,
        slots, scenario, principal, rev, embedder)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, 'skill_' || n / 3, n % 3 + 1,
        CASE WHEN n % 30011 = 0 THEN 'retired' WHEN n % 3 = 0 THEN 'active' ELSE 'superseded' END,
        'f()', 'def f(): ...', ARRAY['mail.list', 'app' || n % 1000 || '.read'], 'tidy up', '{{}}',
        's' || n % 1000, CASE WHEN n % 1000 = 7 THEN 'p7' ELSE '' END, n, CASE WHEN n % 60000 > 0 THEN 'words' END
    FROM generate_series(1, :rows) n
    """,
    f"""
    INSERT INTO training_runs (id, project_id, created_at, kind, settings, state, attempt, losses, lost_at,
        cancel_requested, step, steps)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, 'sft', '{{}}',
        CASE WHEN n % 30011 = 0 THEN 'failed' ELSE 'done' END, 1, 0, 0, false, 1, 1
    FROM generate_series(1, :rows) n
    """,
    f"""
    INSERT INTO audit_entries (id, project_id, created_at, release_id, actor, action, detail)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, CASE WHEN n % 30011 = 0 THEN '{_RELEASE}'::uuid END,
        'server', 'skill moved', '{{}}'
    FROM generate_series(1, :rows) n
    """,
    f"""
    INSERT INTO approvals (id, project_id, created_at, task_id, seq, turn, api, arguments, digest, state,
        expires_at, reason)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, {_ANY_TASK}, 1, 1, 'mail.send', '{{}}', '',
        CASE WHEN n % 30011 = 0 THEN 'refused' ELSE 'approved' END, {_CREATED}, ''
    FROM generate_series(1, :rows) n
    """,
    f"""
    INSERT INTO task_events (task_id, seq, kind, data)
    SELECT id, e, CASE WHEN e % 3 = 0 THEN 'call' ELSE 'observation' END, jsonb_build_object('api', 'mail.send',
        'turn', 1, 'text', repeat('x', 500), 'error', CASE WHEN e % 9 = 0 THEN 'refused' END)
    FROM tasks, generate_series(1, 20) e WHERE created_at > {_CREATED.replace("n *", ":rows * 0.98 *")}
    ORDER BY id, e
    """,
    f"""
    INSERT INTO webhook_deliveries (id, project_id, created_at, task_id, event, body, state, next_at, attempt,
        finished_at)
    SELECT gen_random_uuid(), {_PROJECT_OF}, {_CREATED}, {_ANY_TASK}, 'task.ended', '{{}}',
        CASE WHEN n % 30011 = 0 THEN 'failed' ELSE 'delivered' END, {_CREATED}, 1, {_CREATED}
    FROM generate_series(1, :rows) n
    """,
]
