"""Examines models as they would serve now: beside the project's skills, found by the retrieval of serving."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID

from app.db.database import Sessions
from app.engine.hosted.chat_model import ChatModel
from app.release.hosted_models import HostedModels, charged
from trainer.evaluation.paired import Evaluator
from trainer.rollouts.stack import open_stack
from trainer.run_job import Job, RunProgress
from trainer.runs.grown_library import grown_skills
from trainer.runs.own_exam import RunEnvironment
from trainer.runs.start_adapter import fetch_adapter


@asynccontextmanager
async def open_evaluator(
    job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment
) -> AsyncIterator[Evaluator]:
    """On the environment of a run, with the engines of the deployment or others. Raises EngineError."""
    grown, retrieval = await grown_skills(sessions, job.project_id), job.deployment.retrieval
    async with open_stack(environment.environment, retrieval, job.deployment, grown=grown) as stack:
        yield Evaluator(
            stack.agent,
            stack.engine,
            stack.environment,
            adapters=job.deployment.adapters_dir,
            new_library=stack.new_library,
            split=environment.examined,
            temperature=job.deployment.temperature,
            base=job.deployment.local_model,
            fetch=partial(fetch_adapter, job),
            report=partial(progress.part, "exam tasks"),
            open_hosted=partial(_open_hosted, job, sessions),
            about=environment.about | {"retrieval": retrieval, "skills_before": len(grown)},
        )


@asynccontextmanager
async def _open_hosted(job: Job, sessions: Sessions, model_id: UUID) -> AsyncIterator[ChatModel]:
    """What it costs counts for the project, whatever comes of the exam."""
    opened = HostedModels.of(job.deployment).open(sessions, model_id)
    async with charged(opened, sessions, job.project_id, str(job.id), model_id) as model:
        yield model
