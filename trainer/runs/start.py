"""What a run begins with: the adapter that it continues, its learner, and the memory and CPUs that it may use.

The tasks that it learns from are recorded, so that their erasure can name it. At its end a fixed prompt probes
its adapter.
"""

import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID

import torch
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.chat import Chat
from app.agent.prompts import choose_profile
from app.apis.listing import ListedApp
from app.base.errors import InvalidError
from app.base.files import write_atomically
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.base.values import BASE, Task, hosted_id
from app.db import tables
from app.db.database import Sessions
from app.engine.memory import MemoryNeed, check_fits, memory_available, served_needs, trained_needs, usual_format
from app.engine.tokenizer import ChatTokenizer
from app.releases import store as releases
from app.releases.adapter_store import AdapterStore
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.learner import Learner
from trainer.learning.model import ACTIVATION_BYTES, base_dtype
from trainer.rollouts.episode import engine_count
from trainer.run_job import Job, RunProgress

_FILE = "start"  # in the run's directory: the hash of the adapter, or the base model
_ROLLOUT_ADAPTERS = 2  # of the present step and the one before
_ADVICE = "lower SAGE_TRAIN_PROCESSES or SAGE_ENGINE_KV_MB, or set gradient_checkpointing"
_PROBED = Task(UUID(int=0), "Find the mails that came in today, and answer how many there are.")
_APPS = (ListedApp("mail", "Mails that were received and sent"),)


async def find_start(job: Job, sessions: Sessions) -> Path | None:
    """The directory of the adapter, None for the base model.

    A retry continues the adapter that was recorded, as another release may be active now. Raises InvalidError for
    an adapter of another base model.
    """
    recorded = job.directory / _FILE
    if recorded.exists():
        return await fetch_adapter(job, recorded.read_text())
    if job.settings.start == "base":
        return None
    async with sessions() as session:
        model = await _serving(session, job.project_id)
        adapter = await session.get(tables.Adapter, model)
    served = job.deployment.local_model
    if adapter is not None and adapter.base != served:
        raise InvalidError(
            f"the active release has an adapter for the base model {adapter.base}, but {served} is "
            f'served: set start="base" to start over, or SAGE_MODEL={adapter.base}'
        )
    return await fetch_adapter(job, model)


async def _serving(session: AsyncSession, project_id: UUID) -> str:
    """The weights of the active release or, while that has a hosted model, those that served last."""
    active = await releases.active(session, project_id)
    if hosted_id(active.model) is None:
        return active.model
    row = tables.Release
    served = await releases.of_project(
        session, project_id, row.activated_at.is_not(None), releases.is_local(row.model)
    )
    latest = max(served, key=lambda release: str(release.activated_at), default=None)
    return latest.model if latest else BASE


def record_start(job: Job, start: Path | None) -> None:
    """Keep the start for retries."""
    write_atomically(name_of(start).encode(), job.directory / _FILE)


def name_of(start: Path | None) -> str:
    """The hash of the adapter, or BASE."""
    return start.name if start else BASE


async def fetch_adapter(job: Job, model: str) -> Path | None:
    """The local directory of an adapter, copied from the store if another host trained it; None for the base."""
    return None if model == BASE else await adapter_store(job).fetch(model)


def adapter_store(job: Job) -> AdapterStore:
    return AdapterStore(job.deployment.adapters_dir, job.deployment.adapter_store)


def recorder(
    job: Job, progress: RunProgress, sessions: Sessions, start: Path | None
) -> Callable[[Collection[UUID]], Awaitable[bool]]:
    """A function that records the tasks, the adapter that the run continues and its rate, before it learns.

    It returns False, and records none, if a task was erased since it was read: then read again. Raises what
    `progress` raises.
    """

    async def record(task_ids: Collection[UUID]) -> bool:
        async with sessions.begin() as session:
            await progress.hold(session)
            return await releases.record(session, job.id, name_of(start), task_ids, job.settings.lr)

    return record


def check_run_memory(
    settings: RunSettings, deployment: Settings, device: torch.device, *, runs: int = 1, advice: str = _ADVICE
) -> None:
    """Raises ModelMemoryError if the host has less than all processes of so many such runs need together.

    A GPU is checked by the process that uses it. Processes that hold parts of a model are not checked.
    """
    if device.type == "cpu" and not deployment.train_shard:
        need = run_need(settings, deployment, device)
        every = MemoryNeed(
            tuple((runs * size, use if runs == 1 else f"{runs} x {use}") for size, use in need.parts)
        )
        check_fits(deployment.model_dir, every, memory_available(), doing="training with ", advice=advice)


def run_need(settings: RunSettings, deployment: Settings, device: torch.device) -> MemoryNeed:
    """Of the processes that update, and of the engines that roll out."""
    path, rolls_out = deployment.model_dir, settings.kind in (RunKind.ROLLOUT, RunKind.PRACTICE)
    learner = trained_needs(
        path,
        base_dtype(deployment.train_dtype, device, path).itemsize,
        rank=settings.lora_rank,
        kept_tokens=0 if settings.gradient_checkpointing else settings.micro_batch_tokens,
        most_kept=ACTIVATION_BYTES,
    ).host
    engine = served_needs(
        path,
        usual_format(path, deployment.engine_dtype),
        cache=deployment.engine_kv_mb << 20,
        adapters=_ROLLOUT_ADAPTERS,
    ).host
    learners = 1 if settings.kind is RunKind.SFT else deployment.train_processes
    engines = engine_count(deployment) if rolls_out and not deployment.rollout_engine_urls else 0
    return MemoryNeed(
        (
            (learners * learner.total, f"{learners} x updates of {learner}"),
            (engines * engine.total, f"{engines} x rollouts of {engine}"),
        )
    )


def leave_cpus_to_serving() -> None:
    """Training uses half of the CPUs. Threads that wait for each other on busy CPUs cost more than they gain: an
    update with one thread too many took ten times as long.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))


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


def probe_prompt(deployment: Settings) -> tuple[int, ...]:
    """Token ids up to the policy's first answer. Raises ModelError for a model without a chat template."""
    tokenizer = ChatTokenizer.load(deployment.model_dir, deployment.template_kwargs)
    profile = choose_profile(deployment.prompt_profile, tokenizer.card)
    return Chat(tokenizer, profile.opening(_PROBED, (), _APPS)).prompt().ids
