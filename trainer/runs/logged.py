"""A run of kind `logged`: policy-gradient updates on served tasks with scores."""

import msgspec

from trainer.experience.read_experience import LoggedExperience
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.publishing import TrainingOutput
from trainer.run_job import Job, RunProgress
from trainer.runs.policy_update import update_policy
from trainer.runs.probe_prompt import probe_prompt
from trainer.runs.report import report_step


async def train_on_logged(
    job: Job, progress: RunProgress, learner: Learner, logged: LoggedExperience
) -> TrainingOutput:
    """Train on the logged experience, step by step.

    A retry ends with the same weights. Raises what `progress` raises.
    """
    checkpoints = Checkpoints(job.directory)
    for index in range(checkpoints.restore(learner) + 1, len(logged.steps) + 1):
        metrics = update_policy(learner, logged.steps[index - 1]) | {"kept_fraction": logged.data.fraction}
        checkpoints.save(learner, index)
        await report_step(progress, index, len(logged.steps), metrics)
    deployment = job.deployment
    adapter = learner.publish(deployment.adapters_dir, probe_prompt(deployment), base=deployment.served_model)
    return TrainingOutput(adapter, msgspec.to_builtins(logged.data))
