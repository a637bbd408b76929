"""Calls to live APIs count against a project's limit, whoever makes them: checks and shadows too."""

import pytest

from app.projects import store as projects
from app.projects import usage
from app.projects.settings import Limits
from app.tasks import queue
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import ScriptedEngine, block
from tests.tasks.test_shadow import DONE, READ, ask, propose, served, shadowed

READ_TWICE = "rows = [apis.ledger.list_entries(), apis.ledger.list_entries()]\n"


async def calls_of(project: LedgerProject) -> int:
    async with project.sessions() as session:
        return (await usage.of_today(session, project.id)).calls


@pytest.mark.parametrize("end", ["score = 1", "score = 1 / 0", "apis.ledger.add_entry(text='x')"])
async def test_the_calls_of_a_check_count_for_the_day_even_if_it_breaks(project: LedgerProject, end: str) -> None:
    await served(project, READ, DONE, check_code=READ_TWICE + end)
    assert await calls_of(project) == 1 + 2
    async with project.sessions() as session:
        row = await projects.by_id(session, project.id)
        assert await queue.exhausted(session, row, Limits(calls_per_day=3)) == "calls_per_day"
        assert await queue.exhausted(session, row, Limits(calls_per_day=4)) is None


async def test_the_calls_of_a_shadow_and_its_check_count_for_the_day(project: LedgerProject) -> None:
    await served(project, READ, DONE, check_code=f"{READ_TWICE}score = 1")
    before = await calls_of(project)
    release = await propose(project)
    await ask(project, release, 1)
    [outcome] = await shadowed(project, release, ScriptedEngine(project.tokenizer, block(READ), block(DONE)))
    assert outcome.score == 1
    assert await calls_of(project) == before + 1 + 2
