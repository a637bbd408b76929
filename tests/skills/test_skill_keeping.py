"""What a task's functions become once it has ended."""

import msgspec
import pytest

from app.base.errors import ConflictError
from app.base.secrets import SecretValues
from app.db import tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.skills import moves
from app.skills import store as skills
from app.skills.keeping import SkillKeeping
from app.skills.library import Library
from app.skills.store import StartingState
from tests.support.rows import claimed_task, new_skill, offer_of, record_offers
from tests.support.written_functions import CATALOG, archived


async def keep(sessions: Sessions, task: tables.Task, owner: str = "me") -> list[tables.Skill]:
    """The skills of a task that wrote a function."""
    trajectory = archived()
    trajectory = msgspec.structs.replace(trajectory, task=msgspec.structs.replace(trajectory.task, id=task.id))
    await SkillKeeping(sessions, Library(sessions)).keep(task, owner, CATALOG, trajectory, SecretValues())
    async with sessions() as session:
        return list(await skills.made_by(session, task.id))


async def test_a_quarantined_skill_that_is_retired_during_a_task_still_taints_what_the_task_wrote(
    committed: Sessions,
) -> None:
    async with committed.begin() as session:
        task = await claimed_task(session)
        rev = await moves.next_rev(session, task.project_id)
        start = StartingState(SkillState.QUARANTINED)
        shown = await skills.insert(session, task.project_id, new_skill("hostile"), rev, start)
        await record_offers(session, task.id, [offer_of(shown)])
        await moves.retire(session, shown.id)
    [written] = await keep(committed, task)
    assert (written.state, written.taint) == (SkillState.QUARANTINED, "the quarantined skill hostile")


async def test_a_runner_that_lost_the_task_keeps_no_skill_of_it(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await claimed_task(session)
    with pytest.raises(ConflictError):
        await keep(committed, task, owner="another")
    async with committed() as session:
        assert await skills.made_by(session, task.id) == []
    assert len(await keep(committed, task)) == 1
