"""One training run from top to bottom: experience, adapter, gate. The file to read first.

rollout: practise   fresh rollouts in an environment ─► groups ─► reward ─► advantages ─► update, step by step
logged:  logged_run what was served and scored ───────► groups ─► reward ─► advantages ─► update
sft:     sft_run    the best of what was served, or imported chats ───────────────────► supervised steps
                                                                      all: ─► adapter ─► gate ─► release
"""

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from app.adapters.store import AdapterStore
from app.db import adapters, models, releases
from app.db.database import Sessions, open_database
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.records import BASE
from app.run_settings import RunKind, practice_environment
from trainer import gate
from trainer.atomic_write import write_atomically
from trainer.engines.sleep import asleep_for, sleepers, wake
from trainer.environment import open_environment
from trainer.evaluation.paired import Evaluator
from trainer.experience.filters import BaseModel
from trainer.job import Job, Result, RunProgress
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.model import pick_device
from trainer.learning.publishing import PublishedAdapter, TrainingOutput
from trainer.learning.update import Learner
from trainer.rollouts.stack import open_stack
from trainer.runs.logged import run_logged
from trainer.runs.probe_prompt import opening_of
from trainer.runs.report import report_step
from trainer.runs.rollout import RolloutRun, StepDone
from trainer.runs.sft import run_sft

_START = "start"  # the file of a run that names what it goes on from
_SHARE = 2
"""Of the processors one half learns and the other serves. Threads that wait for each other on processors that are
taken lose more than they gain: an update with one thread too many took ten times as long."""


async def carry_out(job: Job, progress: RunProgress) -> Result:
    """Learn, then let the gate decide. Raises AppError with what is wrong and what to do; nothing that serves has
    changed then.
    """
    wake(sleepers(job.deployment))  # an attempt before this one may have left them asleep
    if job.settings.environment:
        open_environment(job.settings.environment)  # if there is none of that name, not only after the training
    async with open_database(job.deployment.database_url, connections=2) as database:
        learned = await _learn(job, progress, database.sessions)
        held = await _hold_gate(job, progress, database.sessions, learned.adapter)
    return Result(
        adapter=learned.adapter.hash,
        release_id=held.release_id,
        decision=held.decision,
        reason=held.reason,
        data=learned.data,
        figures=held.evidence,
    )


async def _learn(job: Job, progress: RunProgress, sessions: Sessions) -> TrainingOutput:
    device = pick_device(job.deployment.engine_device)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // _SHARE))
    base = BaseModel(job.deployment.model, ChatTokenizer.load(job.deployment.model_dir))
    start = await _start(job, sessions)
    with asleep_for(job.deployment) if job.settings.kind is not RunKind.ROLLOUT else nullcontext():
        if job.settings.kind is RunKind.SFT:
            return await run_sft(job, progress, sessions, base, start, device)
        with open_learner(_spec(job, start, device), _team(job)) as learner:
            write_atomically((start.name if start else BASE).encode(), job.directory / _START)  # now that it fits
            if job.settings.kind is RunKind.LOGGED:
                return await run_logged(job, progress, sessions, base, learner)
            return TrainingOutput(await _learn_by_doing(job, progress, learner))


async def _learn_by_doing(job: Job, progress: RunProgress, learner: Learner) -> PublishedAdapter:
    settings = job.settings
    async with open_stack(practice_environment(settings), settings.retrieval, job.deployment) as stack:

        async def report(done: StepDone) -> None:
            await report_step(progress, done.index, settings.steps, done.metrics)

        run = RolloutRun(
            replace(stack.agent, temperature=1.0),
            stack.engine,
            stack.environment,
            learner,
            settings,
            job.directory,
            stack.new_library,
            updating=partial(asleep_for, job.deployment),
        )
        await run.run(report)
    return learner.publish(job.deployment.adapters_dir, opening_of(job.deployment))


def _spec(job: Job, start: Path | None, device: torch.device) -> LearnerSpec:
    return LearnerSpec(
        model_dir=job.deployment.model_dir,
        settings=job.settings,
        start=start,
        device=device.type,
        dtype=job.deployment.train_dtype,
        shard=job.deployment.train_shard,
    )


def _team(job: Job) -> Team:
    return Team(
        local=job.deployment.train_processes,
        remote=job.deployment.train_remote_processes,
        rendezvous=job.deployment.train_rendezvous,
    )


async def _start(job: Job, sessions: Sessions) -> Path | None:
    """The adapter to go on from; None for the base model. Raises InvalidError where it is for another base.

    An earlier attempt at the run has written down where it began: another release may be active since.
    """
    noted = job.directory / _START
    if noted.exists():
        return await _path(job, noted.read_text())
    if job.settings.start == "base":
        return None
    async with sessions() as session:
        model = (await releases.active(session, job.project_id)).model
        made = await session.get(models.Adapter, model)
    if made is not None and made.base != job.deployment.model:
        raise InvalidError(
            f"the active release wears an adapter for the base model {made.base}, but {job.deployment.model} is "
            f'served: set start="base" to begin anew, or SAGE_MODEL={made.base}'
        )
    return await _path(job, model)


async def _path(job: Job, model: str) -> Path | None:
    return None if model == BASE else await _store(job).path(model)


def _store(job: Job) -> AdapterStore:
    return AdapterStore(job.deployment.adapters_dir, job.deployment.adapter_store)


async def _hold_gate(
    job: Job, progress: RunProgress, sessions: Sessions, adapter: PublishedAdapter
) -> gate.GateResult:
    await _store(job).put(adapter.hash)  # before anything in the database speaks of it
    async with sessions.begin() as session:
        await adapters.put(
            session,
            adapter.hash,
            base=job.deployment.model,
            rank=adapter.rank,
            run_id=job.id,
            probe=adapter.probe,
        )
    candidate = gate.Candidate(project_id=job.project_id, run_id=job.id, model=adapter.hash, settings=job.settings)
    if not job.settings.environment or not job.settings.gate_scenarios:
        return await gate.evaluate_candidate(sessions, candidate, None, progress=progress)
    await _fetch_active(job, sessions)
    async with open_stack(job.settings.environment, job.settings.retrieval, job.deployment) as stack:
        evaluator = Evaluator(
            stack.agent,
            stack.engine,
            stack.environment,
            adapters=job.deployment.adapters_dir,
            new_library=stack.new_library,
            temperature=job.deployment.temperature,
        )
        return await gate.evaluate_candidate(
            sessions, candidate, evaluator, progress=progress, directory=job.directory
        )


async def _fetch_active(job: Job, sessions: Sessions) -> None:
    """It sits the exam, too, and may have been trained on another host."""
    async with sessions() as session:
        model = (await releases.active(session, job.project_id)).model
    await _path(job, model)
