"""Tasks and the release they are pinned to: they see its tools, and their trajectories name it."""

import json
from uuid import UUID

from sqlalchemy import update

from app.agent.prompt import prompt_hash
from app.db import apis, models, releases, trajectories
from app.db.models import ReleaseState, TaskState
from app.records import Trajectory
from app.release import manifest
from tests.desk import Office
from tests.scripted import Answer, ScriptedEngine, block


def looking(prompt: str, turn: int) -> Answer:  # noqa: ARG001
    """Looks at what there is to call."""
    look = "print(apis.api_docs.show_signatures(app_name='ledger'))"
    return block("apis.supervisor.complete_task()" if turn else look)


async def rename(office: Office, name: str) -> models.Release:
    """The document calls the ledger's one way to write otherwise from now on."""
    text = json.dumps(office.ledger.document("http://ledger.test")).replace('"add_entry"', f'"{name}"')
    async with office.sessions.begin() as session:
        serving = await manifest.hold(session, office.project.id)
        await apis.put(
            session, office.project.id, "ledger", source="upload", document=json.loads(text), digest=name
        )
        return await manifest.tools_changed(session, serving, ["ledger"], "key me")


async def trajectory(office: Office, task_id: UUID) -> Trajectory:
    assert (await office.ended(task_id)).state is TaskState.DONE
    async with office.sessions() as session:
        return await trajectories.of_task(session, task_id)


async def pin(office: Office, task_id: UUID, release_id: UUID) -> None:
    async with office.sessions.begin() as session:
        await session.execute(update(models.Task).where(models.Task.id == task_id).values(release_id=release_id))


async def test_tasks_of_releases_that_serve_side_by_side_each_see_their_own_tools(office: Office) -> None:
    engine = ScriptedEngine(office.tokenizer, script=looking)
    async with office.runner(engine):
        before = await trajectory(office, await office.submit())
        release = await rename(office, "append_entry")
        after = await trajectory(office, await office.submit())
    assert before.policy.release is not None
    late = await office.submit()
    await pin(office, late, before.policy.release)  # as one that was claimed before, and whose runner died
    async with office.sessions.begin() as session:
        canary = await releases.propose(session, office.project.id, "f00d")
        canary.state, canary.canary_percent = ReleaseState.CANARY, 1.0
    tried = await office.submit()
    await pin(office, tried, canary.id)
    async with office.runner(engine):
        again, new = await trajectory(office, late), await trajectory(office, tried)
    for each, offered, model, number in (
        (before, "add_entry", "base", before.policy.release),
        (again, "add_entry", "base", before.policy.release),
        (after, "append_entry", "base", release.id),
        (new, "append_entry", "f00d", canary.id),
    ):
        assert f"{offered}(" in each.turns[0].observation
        assert (each.policy.model, each.policy.release) == (model, number)
    async with office.sessions() as session:
        prompts = [each.prompt for each in await releases.of_project(session, office.project.id)]
    agent = office.desk(engine).agent
    assert prompts == [prompt_hash(agent.profile, agent.tokenizer)] * 3
