"""Processes of two versions with different prompts: which one carries a task on, and what is learned from."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import Compact, Profile
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.db import results, runners
from app.db.database import Sessions
from app.db.tables import Task as TaskRow
from app.db.tables import TaskState
from app.engine.protocol import Engine
from app.engine.tokenizer import Message
from app.releases import store as releases
from app.releases.manifest import update_prompt
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.runner import Runner
from tests.support.gated_run import GatedRun, lazy
from tests.support.ledger_policies import DONE, word_of
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.read_served import pair, read
from tests.support.rows import project_row, runner_report
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.served_project import ServedProject

OLD = Compact()


class NewerPrompt(Compact, frozen=True):
    """The compact profile, one word longer."""

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        messages = super().opening(task, offers, apps)
        return [Message(each.role, f"{each.content} please") for each in messages]


NEW = NewerPrompt()


class StuckAtSecondTurn(ScriptedEngine):
    """Writes an entry in its first turn, and never gets to its second."""

    async def _next(self, prompt: str) -> str:
        if prompt.count("<|im_start|>assistant") > 1:
            await asyncio.sleep(3600)
        return block(f"apis.ledger.add_entry(text='{word_of(prompt)}')")


def finishing(_prompt: str, _turn: int) -> str:
    return block(DONE)


def hash_of(project: LedgerProject, profile: Profile) -> str:
    return replace(project.executor(ScriptedEngine(project.tokenizer)).agent, profile=profile).prompt_hash


def runner_with(project: LedgerProject, engine: Engine, profile: Profile) -> Runner:
    """A runner whose tasks have the prompt of this profile."""
    executor = project.executor(engine)
    executor = replace(executor, agent=replace(executor.agent, profile=profile))
    options = msgspec.structs.replace(OPTIONS, prompt=executor.agent.prompt_hash)
    return Runner(project.sessions, executor.execute, options)


async def report(sessions: Sessions, name: str, prompt: str, **more: bool) -> None:
    """As a process that serves with this prompt does every second."""
    async with sessions.begin() as session:
        await runners.report(session, runner_report(name, prompt=prompt, **more))


async def begun(project: LedgerProject) -> UUID:
    """A task whose first turn was executed under the old prompt, handed back by its runner."""
    async with runner_with(project, StuckAtSecondTurn(project.tokenizer), OLD):
        task_id = await project.submit()
        await until(lambda: len(project.ledger.entries) == 1)
        await until(lambda: has_observation(project, task_id))
    return task_id


async def has_observation(project: LedgerProject, task_id: UUID) -> bool:
    return "observation" in [kind for kind, _ in await project.events(task_id)]


async def test_a_task_goes_on_under_the_prompt_that_it_began_under_while_a_runner_has_it(
    project: LedgerProject,
) -> None:
    task_id, old = await begun(project), hash_of(project, OLD)
    await report(project.sessions, "another of the old version", old)
    engine = ScriptedEngine(project.tokenizer, script=finishing)
    async with runner_with(project, engine, NEW):
        fresh = await project.ended(await project.submit("say hello"))
        row = await project.row(task_id)
        assert (row.state, row.owner, row.prompt) == (TaskState.RUNNING, None, old)
        async with runner_with(project, engine, OLD):
            row = await project.ended(task_id)
    async with project.sessions() as session:
        assert (await results.of_task(session, task_id)).prompts == (old,)
        assert (await results.of_task(session, fresh.id)).prompts == (hash_of(project, NEW),)
    assert fresh.prompt == hash_of(project, NEW)
    assert "prompt" not in [kind for kind, _ in await project.events(task_id)]


@pytest.mark.parametrize("draining", [True, False], ids=["draining", "gone"])
async def test_where_no_runner_has_its_prompt_a_task_goes_on_under_another_and_says_so(
    project: LedgerProject, draining: bool
) -> None:
    task_id, old, new = await begun(project), hash_of(project, OLD), hash_of(project, NEW)
    if draining:
        await report(project.sessions, "another of the old version", old, draining=True)
    async with runner_with(project, ScriptedEngine(project.tokenizer, script=finishing), NEW):
        row = await project.ended(task_id)
    assert (row.state, row.prompt) == (TaskState.DONE, old)
    assert ("prompt", {"was": old, "now": new}) in await project.events(task_id)
    async with project.sessions() as session:
        assert (await results.of_task(session, task_id)).prompts == (old, new)
    assert len(project.ledger.entries) == 1, "the turn under the old prompt was replayed, not repeated"


async def test_a_task_without_a_turn_is_of_the_prompt_that_executes_it(project: LedgerProject) -> None:
    async with project.sessions.begin() as session:
        waiting = await project.submit()
        row = await session.get_one(TaskRow, waiting)
        row.prompt, row.state = "of a runner that was gone before it sampled anything", TaskState.RUNNING
    async with runner_with(project, ScriptedEngine(project.tokenizer, script=finishing), NEW):
        row = await project.ended(waiting)
    assert row.prompt == hash_of(project, NEW)
    assert "prompt" not in [kind for kind, _ in await project.events(waiting)]


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> ServedProject:
    return ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))


async def sampled_under(shop: ServedProject, *prompts: str) -> None:
    row = await shop.task(0.5)
    whole = await shop.rollout(row, shop.turn())
    turns = tuple(msgspec.structs.replace(whole.turns[0], prompt=prompt) for prompt in prompts)
    await results.save(shop.session, shop.project.id, msgspec.structs.replace(whole, turns=turns))


async def test_what_was_sampled_under_another_prompt_is_left_out_and_counted(shop: ServedProject) -> None:
    await pair(shop)  # of a version that recorded the prompt only of the release
    (await releases.active(shop.session, shop.project.id)).prompt = "new"
    await sampled_under(shop, "new", "new")
    await sampled_under(shop, "old", "old")
    await sampled_under(shop, "old", "new")
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (3, {"other_prompt": 2})


async def test_after_a_change_of_the_prompt_the_tasks_of_the_release_before_are_left_out(
    shop: ServedProject,
) -> None:
    (await releases.active(shop.session, shop.project.id)).prompt = "old"
    await pair(shop)
    await update_prompt(shop.session, shop.project.id, "new")
    await pair(shop)
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (2, {"other_prompt": 2})


@pytest.fixture
async def gated(sessions: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path) -> GatedRun:
    return await GatedRun(sessions, bare_sandbox, tmp_path).open()


async def test_a_gate_with_another_prompt_than_the_one_served_measures_nothing(gated: GatedRun) -> None:
    async with gated.sessions.begin() as session:
        (await releases.active(session, gated.project_id)).prompt = "of another version"
    result = await gated.evaluate(gated.policies(base=lazy, new=gated.expert))
    assert (result.decision, result.evidence["verdict"]) == ("waiting", "untested")
    assert "another prompt than the one that is served" in result.reason
    assert gated.environment.requests == []
