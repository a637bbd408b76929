"""The learner of a run, as its deployment trains."""

from contextlib import AbstractContextManager
from pathlib import Path

import torch

from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.learner import Learner
from trainer.run_job import Job


def open_run_learner(job: Job, start: Path | None, device: torch.device) -> AbstractContextManager[Learner]:
    """From the adapter `start`. Raises as `open_learner`."""
    spec = LearnerSpec(
        model_dir=job.deployment.model_dir,
        settings=job.settings,
        start=start,
        device=device.type,
        dtype=job.deployment.train_dtype,
        shard=job.deployment.train_shard,
    )
    team = Team(
        local=job.deployment.train_processes,
        remote=job.deployment.train_remote_processes,
        rendezvous=job.deployment.train_rendezvous,
    )
    return open_learner(spec, team)
