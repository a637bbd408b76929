"""A training run from top to bottom: experience, adapter, gate. Read this file first.

kind      experience                                      learning
rollout   groups of fresh rollouts with rewards           advantages, one update per step
logged    groups of scored served tasks with rewards      advantages, one update per step
sft       imported chats, or the best served tasks        supervised steps
exam      none                                            none: releases are examined
practice  lessons and rollouts on an API's double         supervised steps, then one update per step

Each kind but `exam` publishes one adapter. The gate then evaluates it as a candidate release.
"""

from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch

from app.base.encryption import KeyRing
from app.base.errors import InvalidError
from app.base.run_settings import RunKind
from app.db.database import Sessions, open_database
from app.engine.tokenizer import ChatTokenizer, read_card
from trainer.engines.servers import servers_that_sleep, sleep_during_updates, wake_servers
from trainer.experience import LoggedExperience, read_once
from trainer.learning.adapter import TrainingOutput
from trainer.learning.learner import with_learning_rate
from trainer.learning.model import pick_device
from trainer.rewards import BaseModel
from trainer.run_job import Job, Result, RunProgress
from trainer.runs.candidate import evaluate_adapter, examine_releases, grown_skills
from trainer.runs.environment import RunEnvironment, check_coverage, open_run_environment, with_own_exam
from trainer.runs.practice import practise, sample_api
from trainer.runs.rollout import train_on_logged, train_on_rollouts
from trainer.runs.sft import SftExamples, load_examples, train_on_examples
from trainer.runs.start import (
    check_run_memory,
    find_start,
    leave_cpus_to_serving,
    name_of,
    open_run_learner,
    record_start,
    recorder,
)


async def train(job: Job, progress: RunProgress) -> Result:
    """Train an adapter and let the gate decide on it.

    Raises AppError with what is wrong and what to do; what is being served is then unchanged.
    """
    deployment = job.deployment
    wake_servers(servers_that_sleep(deployment))  # an earlier attempt may have left them asleep
    keys = KeyRing.when_needed(deployment)  # of hosted models
    async with open_database(
        deployment.database_url, connections=3, keys=keys, direct_url=deployment.direct_url
    ) as database:
        sessions = database.sessions
        settings = with_learning_rate(job.settings, read_card(deployment.model_dir))
        job = await with_own_exam(msgspec.structs.replace(job, settings=settings), sessions)
        await sample_api(job, progress, sessions)
        # Before the training, which takes long: it may fail.
        async with open_run_environment(job, sessions, progress) as environment:
            await check_coverage(job, sessions, environment)
            match job.settings.kind:
                case RunKind.EXAM:
                    return await examine_releases(job, progress, sessions, environment)
                case RunKind.PRACTICE:
                    assert environment is not None  # `check_runnable`
                    return await practise(job, progress, sessions, environment)
            start, device = await find_start(job, sessions), pick_device(deployment.engine_device)
            source = await _read_source(job, progress, sessions, environment, start)
            check_run_memory(job.settings, deployment, device)
            if environment is not None:
                environment = await environment.checked()  # only now: there may be nothing to learn from
            output = await _train_adapter(job, progress, sessions, environment, source, start, device)
            result = await evaluate_adapter(job, progress, sessions, output.adapter, environment)
    return msgspec.structs.replace(result, data=output.data)


async def _read_source(
    job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment | None, start: Path | None
) -> SftExamples | LoggedExperience | None:
    """What the run learns from, before anything is loaded or tried; None for one that rolls out.

    Raises InvalidError where there is nothing to learn from.
    """
    tokenizer = ChatTokenizer.load(job.deployment.model_dir, job.deployment.template_kwargs)
    base = BaseModel(job.deployment.local_model, tokenizer, name_of(start))
    record = recorder(job, progress, sessions, start)
    source: SftExamples | LoggedExperience | None = None
    if job.settings.kind is RunKind.SFT:
        source = await load_examples(job, sessions, base, record)
    elif job.settings.kind is RunKind.LOGGED:
        read_from = (sessions, job.project_id, job.settings, base, job.directory, record)
        source = await read_once(*read_from, deployment=job.deployment)
    drawn_from = environment.drawn_from if environment and source is None else ()
    if not await record(drawn_from):  # a retry has its other data already, but may continue another adapter
        raise InvalidError("tasks that the rollouts were to repeat were erased just now: queue the run again")
    return source


async def _train_adapter(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    environment: RunEnvironment | None,
    source: SftExamples | LoggedExperience | None,
    start: Path | None,
    device: torch.device,
) -> TrainingOutput:
    leave_cpus_to_serving()
    # A rollout run needs the engines: they sleep only during its updates.
    with nullcontext() if source is None else sleep_during_updates(job.deployment):
        if isinstance(source, SftExamples):
            return await train_on_examples(job, progress, source, start, device)
        with open_run_learner(job, start, device) as learner:
            record_start(job, start)  # only now: it fits the model
            if source is not None:
                return await train_on_logged(job, progress, learner, source)
            assert environment is not None  # `check_runnable`
            grown = await grown_skills(sessions, job.project_id)
            output = await train_on_rollouts(job, progress, learner, environment.environment, grown)
            return msgspec.structs.replace(output, data=environment.training)
