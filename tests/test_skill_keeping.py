"""What a task's functions become once it has ended."""

import msgspec

from app.db import offers, skill_moves, skills
from app.db.database import Sessions
from app.db.models import SkillState
from app.db.skills import StartingState
from app.runner.skill_keeping import SkillKeeping
from app.security.secret_values import SecretValues
from app.skills.library import Library
from tests.rows import new_skill, offer_of, project_row, task_row
from tests.written_functions import CATALOG, archived


async def test_a_quarantined_skill_that_is_retired_during_a_task_still_taints_what_the_task_wrote(
    committed: Sessions,
) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        task = await task_row(session, project.id)
        rev = await skill_moves.next_rev(session, project.id)
        start = StartingState(SkillState.QUARANTINED)
        shown = await skills.insert(session, project.id, new_skill("hostile"), rev, start)
        await offers.record(session, task.id, [offer_of(shown)])
        await skill_moves.retire(session, shown.id)
    trajectory = archived()
    trajectory = msgspec.structs.replace(trajectory, task=msgspec.structs.replace(trajectory.task, id=task.id))
    await SkillKeeping(committed, Library(committed)).keep(task, CATALOG, trajectory, SecretValues())
    async with committed() as session:
        [written] = await skills.made_by(session, task.id)
    assert (written.state, written.taint) == (SkillState.QUARANTINED, "the quarantined skill hostile")
