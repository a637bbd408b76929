"""A run of kind `logged`: policy-gradient updates on served tasks with scores."""

import msgspec

from app.db.database import Sessions
from trainer.experience.filters import BaseModel
from trainer.experience.snapshot import RecordTasks, read_once
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.publishing import TrainingOutput
from trainer.run_job import Job, RunProgress
from trainer.runs.policy_update import update_policy
from trainer.runs.probe_prompt import probe_prompt
from trainer.runs.report import report_step


async def train_on_logged(
    job: Job, progress: RunProgress, sessions: Sessions, base: BaseModel, learner: Learner, record: RecordTasks
) -> TrainingOutput:
    """Train on the logged experience, step by step. A retry ends with the same weights.

    Raises InvalidError where there is nothing to learn from, and what `progress` raises.
    """
    judge = job.deployment.judge
    logged = await read_once(sessions, job.project_id, job.settings, base, job.directory, record, judge=judge)
    checkpoints = Checkpoints(job.directory)
    for index in range(checkpoints.restore(learner) + 1, len(logged.steps) + 1):
        metrics = update_policy(learner, logged.steps[index - 1]) | {"kept_fraction": logged.data.fraction}
        checkpoints.save(learner, index)
        await report_step(progress, index, len(logged.steps), metrics)
    deployment = job.deployment
    adapter = learner.publish(deployment.adapters_dir, probe_prompt(deployment), base=deployment.served_model)
    return TrainingOutput(adapter, msgspec.to_builtins(logged.data))
