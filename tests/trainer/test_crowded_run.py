"""The rollouts of a run are offered skills of the project's library, as served tasks are."""

from pathlib import Path

import msgspec

from app.db.database import Sessions
from app.skills import store as skills
from tests.support.rows import new_skill
from tests.support.training_project import ONE_TURN, ProgressRecorder, TrainingProject, on_this_machine
from trainer.run import train


async def test_skills_of_the_library_are_offered_in_rollouts(
    committed: Sessions, database_url: str, tiny: Path, tmp_path: Path
) -> None:
    settings = on_this_machine(tiny, tmp_path, database_url, **ONE_TURN)
    shop = await TrainingProject.open(committed, settings)
    async with committed.begin() as session:
        for name in ("greet", "wave"):
            new = msgspec.structs.replace(new_skill(name, f"def {name}(): return 1"), apis=[])
            await skills.add(session, shop.project_id, new)
    job = await shop.job(kind="rollout", environment="office", steps=1, pairs=4, group=2, chain=1)
    progress = ProgressRecorder()
    await train(job, progress)
    assert "skill_usage" in progress.metrics[1], "a chain of one task has no skills of its own"
