"""Tasks use the tools of the release they are pinned to, and their trajectories name it."""

from uuid import UUID

from sqlalchemy import update

from app.agent.prompts import prompt_hash
from app.base.values import Trajectory
from app.db import results, tables
from app.db.tables import ReleaseState, TaskState
from app.releases import store as releases
from tests.support.ledger_project import LedgerProject, change_ledger
from tests.support.scripted_engine import Answer, ScriptedEngine, block


def looking(prompt: str, turn: int) -> Answer:  # noqa: ARG001
    """Lists the available operations."""
    look = "print(apis.api_docs.show_signatures(app_name='ledger'))"
    return block("apis.supervisor.complete_task(answer=1)" if turn else look)


async def trajectory(project: LedgerProject, task_id: UUID) -> Trajectory:
    assert (await project.ended(task_id)).state is TaskState.DONE
    async with project.sessions() as session:
        return await results.of_task(session, task_id)


async def pin(project: LedgerProject, task_id: UUID, release_id: UUID) -> None:
    async with project.sessions.begin() as session:
        await session.execute(update(tables.Task).where(tables.Task.id == task_id).values(release_id=release_id))


async def test_tasks_of_concurrent_releases_each_see_their_own_tools(
    project: LedgerProject,
) -> None:
    engine = ScriptedEngine(project.tokenizer, script=looking)
    async with project.runner(engine):
        before = await trajectory(project, await project.submit())
        release = await change_ledger(project, "add_entry", "append_entry")
        after = await trajectory(project, await project.submit())
    assert before.policy.release is not None
    late = await project.submit()
    await pin(project, late, before.policy.release)  # like one that was claimed before, and whose runner died
    async with project.sessions.begin() as session:
        canary = await releases.propose(session, project.id, "f00d")
        canary.state, canary.canary_percent = ReleaseState.CANARY, 1.0
    tried = await project.submit()
    await pin(project, tried, canary.id)
    async with project.runner(engine):
        again, new = await trajectory(project, late), await trajectory(project, tried)
    for each, offered, model, number in (
        (before, "add_entry", "base", before.policy.release),
        (again, "add_entry", "base", before.policy.release),
        (after, "append_entry", "base", release.id),
        (new, "append_entry", "f00d", canary.id),
    ):
        assert f"{offered}(" in each.turns[0].observation
        assert (each.policy.model, each.policy.release) == (model, number)
    async with project.sessions() as session:
        prompts = [each.prompt for each in await releases.of_project(session, project.id)]
    agent = project.executor(engine).agent
    assert prompts == [prompt_hash(agent.profile, agent.tokenizer)] * 3
