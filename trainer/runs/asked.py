"""What people ask a project for, as its tasks show it."""

from uuid import UUID

from app.apis.double.model import Model
from app.db import training_data
from app.db.database import Sessions, reading
from app.score_source import GOOD
from trainer.practice.mix import Mix, RealTask

_TASKS = 500  # the newest


async def asked_of(sessions: Sessions, project_id: UUID, model: Model) -> Mix:
    """The mix by what the newest tasks did with the API, scored or not. Their texts and answers are not read."""
    async with reading(sessions) as session:
        ended = await training_data.window(session, project_id, limit=_TASKS)
        scores = {each.id: each.score for each in ended if each.executed}
        tasks = []
        async for each in training_data.trajectories(session, list(scores)):
            calls = tuple(call for call in each.calls if call.api.partition(".")[0] == model.app.name)
            score = scores[each.task.id]
            tasks.append(RealTask(calls, failed=score is not None and score < GOOD))
    return Mix.of(model, tasks)
