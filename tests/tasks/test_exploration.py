"""A share of tasks is sampled at temperature 1, for runs to learn from, and no user's task is lost by it."""

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import update

from app.base.run_settings import RunKind, RunSettings
from app.db import results, tables
from app.db.tables import Exploration, TaskState
from app.projects.settings import ProjectSettings, stored
from app.runs import schedule as schedules
from app.skills import offers
from app.skills import store as skills
from app.skills.selection import is_withheld
from app.tasks import store as tasks
from app.tasks.context import is_chosen
from app.tasks.execution import TaskExecutor
from app.tasks.runner import Runner
from app.tasks.shadows import ShadowRunner
from tests.skills.test_withheld_skills import INSTRUCTION, new_skill
from tests.support.ledger_policies import DONE
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.tasks.test_shadow import ask, pairs, propose

READ = "print(apis.ledger.list_entries())"
WRITE = "apis.ledger.list_entries()\napis.ledger.add_entry(text='hello')"


def reading(prompt: str, turn: int) -> Answer:  # noqa: ARG001 - the signature of scripts
    return block([READ, DONE][min(turn, 1)])


def writing(prompt: str, turn: int) -> Answer:  # noqa: ARG001
    return block([READ, WRITE, DONE][min(turn, 2)])


def greedy_executor(project: LedgerProject, engine: ScriptedEngine) -> TaskExecutor:
    executor = project.executor(engine)
    return replace(executor, agent=replace(executor.agent, temperature=0.0))


def greedy_runner(project: LedgerProject, engine: ScriptedEngine) -> Runner:
    return Runner(project.sessions, greedy_executor(project, engine).execute, OPTIONS)


async def configure(project: LedgerProject, **settings: Any) -> None:
    async with project.sessions.begin() as session:
        await session.execute(
            update(tables.Project)
            .where(tables.Project.id == project.id)
            .values(settings=stored(ProjectSettings(**settings)))
        )


async def schedule(project: LedgerProject, kind: RunKind, *, enabled: bool = True) -> None:
    new = schedules.ScheduleRequest(every_hours=1000, settings=RunSettings(kind=kind), enabled=enabled)
    async with project.sessions.begin() as session:
        await schedules.put(session, project.id, new)


async def temperature_of(project: LedgerProject, task_id: UUID) -> float:
    async with project.sessions() as session:
        return (await results.of_task(session, task_id)).temperature


def test_the_share_is_kept_and_has_nothing_to_do_with_the_skills_that_are_withheld() -> None:
    ids = [UUID(int=number << 64) for number in range(20_000)]
    small, large = ({each for each in ids if is_chosen(each, percent)} for percent in (25, 50))
    assert small < large
    assert len(small) / len(ids) == pytest.approx(0.25, abs=0.01)
    withheld = {each for each in ids if is_withheld(each, 0.2)}
    assert len(withheld & small) / len(withheld) == pytest.approx(0.25, abs=0.02)
    assert not any(is_chosen(each, 0) for each in ids)
    assert all(is_chosen(each, 100) for each in ids)


async def test_an_exploring_task_that_only_reads_is_sampled_at_1_and_others_are_not(
    project: LedgerProject,
) -> None:
    await configure(project, explore_percent=100)
    engine = ScriptedEngine(project.tokenizer, script=reading)
    async with greedy_runner(project, engine):
        found = {}
        sent: dict[str, dict[str, Any]] = {
            "exploring": {},
            "unwilling": {"explore": False},
            "pinned": {"pinned": True},
        }
        for name, more in sent.items():
            row = await project.ended(await project.submit(**more))
            found[name] = (row.state, await temperature_of(project, row.id))
    done = TaskState.DONE
    assert found == {"exploring": (done, 1.0), "unwilling": (done, 0.0), "pinned": (done, 0.0)}
    assert [sampling.temperature for sampling in engine.samplings] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


async def test_a_task_that_wants_to_write_begins_again_greedily_and_writes_once(project: LedgerProject) -> None:
    await configure(project, explore_percent=100)
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with greedy_runner(project, engine):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop, row.turns, row.calls) == (TaskState.DONE, "completed", 3, 3)
    assert [entry.text for entry in project.ledger.entries] == ["hello"]
    assert [sampling.temperature for sampling in engine.samplings] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert engine.prompts[2] == engine.prompts[0]
    assert await temperature_of(project, row.id) == 0.0
    remarks = [data["text"] for kind, data in await project.events(row.id) if kind == "remark"]
    assert [text for text in remarks if "ledger.add_entry" in text and "begins again" in text]


@pytest.mark.parametrize("withheld", [0.0, 1.0])
async def test_a_task_that_begins_again_has_the_skills_it_had(project: LedgerProject, withheld: float) -> None:
    project.withheld = withheld
    await configure(project, explore_percent=100, skills="open")
    async with project.sessions.begin() as session:
        skill = await skills.add(session, project.id, new_skill())
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with greedy_runner(project, engine):
        row = await project.ended(await project.submit(INSTRUCTION))
    assert (row.state, row.failure) == (TaskState.DONE, None)
    assert engine.prompts[2] == engine.prompts[0]
    assert ("write_entry" in engine.prompts[0]) is not bool(withheld)
    async with project.sessions() as session:
        offered = [each.skill_id for each, _ in await offers.to_task(session, row.id)]
        without = [each.id for each in await offers.withheld_from(session, row.id)]
    assert (offered, without) == (([], [skill.id]) if withheld else ([skill.id], []))


async def test_the_shadow_of_a_task_is_sampled_as_the_task_was(project: LedgerProject) -> None:
    """Else a release that is tried greedily on tasks that explored would look better than it is."""
    await configure(project, explore_percent=100)
    async with greedy_runner(project, ScriptedEngine(project.tokenizer, script=reading)):
        for explore in (True, False):
            await project.ended(await project.submit(explore=explore))
    release = await propose(project)
    assert await ask(project, release) == 2
    engine = ScriptedEngine(project.tokenizer, script=reading)

    async def all_are_done() -> bool:
        return all(pair.shadow for pair in await pairs(project, release))

    async with ShadowRunner(project.sessions, greedy_executor(project, engine), lambda: True, pause=0.1):
        await until(all_are_done)
    assert sorted(sampling.temperature for sampling in engine.samplings) == [0.0, 0.0, 1.0, 1.0]


async def test_a_call_that_a_person_approves_is_none_for_exploring_tasks(project: LedgerProject) -> None:
    rules = {"operations": {"ledger.list_entries": "always"}}
    await configure(
        project,
        explore_percent=100,
        approvals=msgspec.convert(rules, ProjectSettings.__annotations__["approvals"]),
    )
    engine = ScriptedEngine(project.tokenizer, script=reading)
    async with greedy_runner(project, engine):
        task_id = await project.submit()

        async def waits() -> bool:
            return (await project.row(task_id)).state is TaskState.WAITING

        await until(waits)
    assert (await project.row(task_id)).exploration is Exploration.STOPPED


async def test_a_project_that_opens_its_writes_has_them_explored(project: LedgerProject) -> None:
    await configure(project, explore_percent=100, explore_writes=True)
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with greedy_runner(project, engine):
        row = await project.ended(await project.submit())
    assert [entry.text for entry in project.ledger.entries] == ["hello"]
    assert await temperature_of(project, row.id) == 1.0
    assert len(engine.samplings) == 3


async def test_a_task_goes_on_as_it_began_whatever_the_project_has_set_since(project: LedgerProject) -> None:
    """Else one trajectory would have turns of two temperatures, or what was written would be forgotten."""
    plan: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("began without", {"explore_percent": 0}, {"explore_percent": 100}),
        ("began with reads", {"explore_percent": 100}, {"explore_percent": 0}),
        ("began with writes", {"explore_percent": 100, "explore_writes": True}, {"explore_percent": 100}),
    ]
    found = {}
    for name, before, after in plan:
        await configure(project, **before)
        project.ledger.entries.clear()
        project.ledger.answers.clear()
        first = ScriptedEngine(project.tokenizer, script=writing)
        async with greedy_runner(project, first):
            task_id = await project.submit()
            await until(partial(bool, first.samplings))
        project.ledger.answers.set()
        await configure(project, **after)
        second = ScriptedEngine(project.tokenizer, script=writing)
        async with greedy_runner(project, second):
            row = await project.ended(task_id)
        used = {sampling.temperature for sampling in (*first.samplings, *second.samplings)}
        entries = [entry.text for entry in project.ledger.entries]
        found[name] = (row.state, used, await temperature_of(project, task_id), entries)
    done = TaskState.DONE
    assert found == {
        "began without": (done, {0.0}, 0.0, ["hello"]),
        "began with reads": (done, {1.0, 0.0}, 0.0, ["hello"]),
        "began with writes": (done, {1.0}, 1.0, ["hello"]),
    }


async def test_a_server_explores_by_default_where_a_schedule_learns_from_its_tasks(project: LedgerProject) -> None:
    chosen = next(UUID(int=number) for number in range(1, 1000) if is_chosen(UUID(int=number), 25))
    engine, found = ScriptedEngine(project.tokenizer, script=reading), []
    plan = [(RunKind.LOGGED, True), (RunKind.LOGGED, False), (RunKind.SFT, True)]
    async with greedy_runner(project, engine):
        for place, (kind, enabled) in enumerate([(None, True), *plan]):
            if kind is not None:
                await schedule(project, kind, enabled=enabled)
            task_id = await fixed_task(project, chosen)
            await project.ended(task_id)
            found.append(await temperature_of(project, task_id))
            async with project.sessions.begin() as session:
                await session.delete(await tasks.get(session, task_id))
            assert len(engine.samplings) == 2 * (place + 1)
    assert found == [0.0, 1.0, 0.0, 0.0]


async def fixed_task(project: LedgerProject, task_id: UUID) -> UUID:
    async with project.sessions.begin() as session:
        session.add(tables.Task(id=task_id, project_id=project.id, instruction="list the ledger"))
    return task_id


async def test_a_server_that_samples_at_1_restrains_no_task(project: LedgerProject) -> None:
    await configure(project, explore_percent=100)
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with project.runner(engine):  # its agent samples at 1
        row = await project.ended(await project.submit())
    assert (row.exploration, len(engine.samplings)) == (None, 3)
    assert [entry.text for entry in project.ledger.entries] == ["hello"]
