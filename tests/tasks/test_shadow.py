"""Finished tasks are replayed by another release: real database, sandbox and API; scripted policies."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, text

from app.base.errors import ConflictError, EngineError, EngineRefusalError
from app.base.values import Stop
from app.db import results, tables
from app.projects import store as projects
from app.releases import store as releases
from app.releases import trials_store
from app.releases.trials_store import ShadowOutcome
from app.skills import offers
from app.tasks import feedback
from app.tasks.shadows import ShadowRunner, request_shadows
from tests.support.ledger_project import LedgerProject, until
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.support.shared_reader import shared_reader
from tests.support.single_connection import single_connection

READ = "print(apis.ledger.list_entries())"
WRITE = "print(apis.ledger.add_entry(text='x'))"
SKILL = "def look() -> list:\n    return apis.ledger.list_entries()\nprint(look())"
DONE = "apis.supervisor.complete_task(answer=7)"
CHECK = "score = 1.0 if answer == 7 else 0.25"


async def served(project: LedgerProject, *codes: str, **more: Any) -> UUID:
    """A finished task with these turns."""
    engine = ScriptedEngine(project.tokenizer, *map(block, codes))
    async with project.runner(engine):
        task_id = await project.submit("look into the ledger", **more)
        await project.ended(task_id)
    return task_id


async def propose(project: LedgerProject) -> tables.Release:
    async with project.sessions.begin() as session:
        return await releases.propose(session, project.id, "f00d")


async def ask(project: LedgerProject, release: tables.Release, count: int = 50) -> int:
    async with project.sessions() as session:
        found = await request_shadows(session, shared_reader(), release, count)
        await session.commit()
        return found


async def pairs(project: LedgerProject, release: tables.Release) -> list[trials_store.ShadowedTask]:
    async with project.sessions() as session:
        return await trials_store.of_release(session, release.id)


async def shadowed(project: LedgerProject, release: tables.Release, engine: ScriptedEngine) -> list[ShadowOutcome]:
    async def all_are_done() -> bool:
        return all(pair.shadow for pair in await pairs(project, release))

    async with ShadowRunner(project.sessions, project.executor(engine), lambda: True, pause=0.1):
        await until(all_are_done)
    return [pair.shadow for pair in await pairs(project, release) if pair.shadow]


async def traces(project: LedgerProject, task_id: UUID) -> list[object]:
    """All that is stored of a task."""
    async with project.sessions() as session:
        row = await session.get_one(tables.Task, task_id)
        columns = {column.name: getattr(row, column.name) for column in tables.Task.__table__.columns}
        record = await results.of_task(session, task_id)
        offered = await offers.offered(session, task_id)
        kept = await session.scalars(select(tables.Skill.id).where(tables.Skill.project_id == row.project_id))
        return [columns, record, offered, [*kept], await project.events(task_id)]


async def test_a_shadow_replays_the_task_with_its_release_and_changes_nothing(
    project: LedgerProject,
) -> None:
    await served(project, SKILL, DONE)
    task_id = await served(project, READ, DONE, check_code=CHECK)
    release = await propose(project)
    before = await traces(project, task_id)
    assert await ask(project, release, 1) == 1
    engine = ScriptedEngine(project.tokenizer, block("print(look())"), block(SKILL), block(READ), block(DONE))
    [outcome] = await shadowed(project, release, engine)
    assert (outcome.stop, outcome.failure, outcome.score, outcome.turns) == (Stop.COMPLETED, None, 1.0, 4)
    assert outcome.generated_tokens > 0
    assert set(engine.models) == {"f00d"}
    assert "look()" in engine.prompts[0], "it gets the offers of the task"
    assert await traces(project, task_id) == before
    async with project.sessions() as session:
        assert (await releases.get(session, release.id)).prompt is None, "it has not served"
    async with project.sessions.begin() as session:
        await feedback.add(session, task_id, 0.0)
    [pair] = await pairs(project, release)
    assert (pair.score, pair.turns) == (1.0, 2), "the check's score, which the shadow has too"


async def test_a_shadow_has_the_seed_and_the_clock_of_its_task(project: LedgerProject) -> None:
    engine = ScriptedEngine(project.tokenizer, block("import time"), block(DONE))
    async with project.runner(engine):
        task_id = await project.submit("look")
        began = (await project.ended(task_id)).started_at
    release = await propose(project)
    await ask(project, release)
    clock = "import datetime; print(datetime.datetime.now(datetime.UTC).isoformat()[:16])"
    again = ScriptedEngine(project.tokenizer, block(clock), block(DONE))
    await shadowed(project, release, again)
    assert [each.seed for each in again.samplings] == [each.seed for each in engine.samplings]
    assert began is not None
    assert began.isoformat()[:16] in again.prompts[1].rpartition("user")[2]


async def test_a_shadow_that_tries_to_write_is_refused_and_counts_as_failed(project: LedgerProject) -> None:
    await served(project, READ, DONE, check_code=CHECK)
    release = await propose(project)
    await ask(project, release)
    engine = ScriptedEngine(project.tokenizer, block(WRITE), block(DONE))
    [outcome] = await shadowed(project, release, engine)
    assert outcome.failure == "it tried to write: ledger.add_entry"
    assert (outcome.stop, outcome.score) == (Stop.COMPLETED, 1.0)
    assert project.ledger.entries == []
    assert "only reading is allowed" in engine.prompts[1]


async def test_only_read_only_tasks_of_other_releases_are_replayed_latest_first(
    project: LedgerProject,
) -> None:
    await served(project, WRITE, DONE)
    release = await propose(project)
    with pytest.raises(ConflictError, match=r"none of the last 1,000 tasks.*is read-only.*x-safe"):
        await ask(project, release)
    older, newer = await served(project, READ, DONE), await served(project, "x = 1", DONE)
    assert await ask(project, release, 1) == 1
    async with project.sessions() as session:
        assert list(await session.scalars(select(tables.Shadow.task_id))) == [newer]
    assert await ask(project, release) == 2, "requested again, a task is not replayed twice"
    assert len(await pairs(project, release)) == 2
    async with project.sessions.begin() as session:
        await releases.activate(session, release.id)
    await served(project, READ, DONE)
    assert await ask(project, release) == 2
    assert older != newer


async def test_a_task_whose_calls_need_approval_by_now_is_not_replayed(project: LedgerProject) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    async with project.sessions.begin() as session:
        await projects.change_settings(session, project.id, {"approvals": {"operations": {"ledger.*": "always"}}})
    with pytest.raises(ConflictError):
        await ask(project, release)


async def test_a_shadow_that_fails_or_cannot_be_scored_stores_the_reason(project: LedgerProject) -> None:
    await served(project, READ, DONE, check_code="score = answer + 0")
    await served(project, READ, DONE)
    release = await propose(project)
    await ask(project, release)
    refusal = EngineRefusalError("no such model", 404)
    engine = ScriptedEngine(project.tokenizer, refusal, block("apis.supervisor.complete_task(answer='x')"))
    outcomes = await shadowed(project, release, engine)
    assert sorted((each.stop is None, (each.failure or "")[:16]) for each in outcomes) == [
        (False, "the check failed"),
        (True, "no such model"),
    ]


async def test_the_shadow_of_a_killed_process_is_replayed_by_another_which_alone_can_write(
    project: LedgerProject,
) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    await ask(project, release)
    async with project.sessions.begin() as session:
        lost = await trials_store.claim(session, "killed", 30)
        assert lost is not None
        assert await trials_store.claim(session, "other", 30) is None
        await session.execute(text("UPDATE shadows SET lease_until = now() - interval '1 second'"))
    [outcome] = await shadowed(project, release, ScriptedEngine(project.tokenizer, block(DONE)))
    assert outcome.stop is Stop.COMPLETED
    async with project.sessions.begin() as session:
        assert not await trials_store.finish(session, lost, ShadowOutcome(failure="too late"))
    [pair] = await pairs(project, release)
    assert pair.shadow == outcome


async def test_a_shadow_during_which_processes_die_is_given_up(project: LedgerProject) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    await ask(project, release)
    async with project.sessions.begin() as session:
        for _ in range(3):
            assert await trials_store.claim(session, "killed", -1) is not None
    [outcome] = await shadowed(project, release, ScriptedEngine(project.tokenizer, block(DONE)))
    assert outcome == ShadowOutcome(failure="3 processes died during this shadow, so it is given up")


async def test_tasks_go_first_and_stopping_hands_back_unfinished_shadows(project: LedgerProject) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    await ask(project, release)
    busy, begun = True, asyncio.Event()

    class Thinks(ScriptedEngine):
        async def _next(self, prompt: str) -> Answer:  # noqa: ARG002
            begun.set()
            await asyncio.sleep(3600)
            raise AssertionError

    async with ShadowRunner(
        project.sessions, project.executor(Thinks(project.tokenizer)), lambda: not busy
    ) as working:
        await asyncio.sleep(0.3)
        assert not begun.is_set()
        busy = False
        working.wake()
        await begun.wait()
    async with project.sessions.begin() as session:
        again = await trials_store.claim(session, "other", 30)
        assert again is not None
        assert again.attempt == 1, "an orderly stop does not count"


async def test_shadows_continue_after_a_while_without_a_connection(
    project: LedgerProject, database_url: str
) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    engine = ScriptedEngine(project.tokenizer, block(DONE))
    async with (
        single_connection(database_url) as database,
        ShadowRunner(database.sessions, project.executor(engine), lambda: True, pause=0.1) as working,
    ):
        async with database.starved():
            await asyncio.sleep(0.5)
        await ask(project, release)
        working.wake()

        async def is_done() -> bool:
            return all(pair.shadow for pair in await pairs(project, release))

        await until(is_done)


async def test_a_shadow_waits_for_its_model_and_no_attempt_counts(project: LedgerProject) -> None:
    await served(project, READ, DONE)
    release = await propose(project)
    await ask(project, release, 1)
    failures = [EngineError("no model server answers")] * 5  # more than the attempts of a shadow
    engine = ScriptedEngine(project.tokenizer, *failures, block(READ), block(DONE))
    [outcome] = await shadowed(project, release, engine)
    assert (outcome.failure, outcome.stop) == (None, Stop.COMPLETED)
