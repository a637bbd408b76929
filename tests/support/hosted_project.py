"""A project whose active release has a hosted model as its policy: only that model is scripted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from app.agent.rollout import RolloutLimits
from app.base.values import hosted
from app.db import tables
from app.db.database import Sessions
from app.engine.protocol import ChatModel, OpenTelling, Told
from app.releases import store as releases
from app.tasks.execution import TaskExecutor
from app.tasks.runner import Runner, RunnerOptions
from tests.support.ledger_project import OPTIONS, LedgerProject
from tests.support.scripted_engine import ScriptedEngine


def always(model: ChatModel) -> OpenTelling:
    """Opens this one, whichever is asked for."""

    @asynccontextmanager
    async def opened(_: UUID, /, *, told: Told | None = None) -> AsyncIterator[ChatModel]:  # noqa: ARG001
        yield model

    return opened


async def hosted_entry(
    sessions: Sessions, project_id: Any, name: str = "claude", **more: Any
) -> tables.HostedModel:
    """An entry of the project."""
    where: dict[str, Any] = {"url": "http://tables.test/v1", "trusted": True}
    row = tables.HostedModel(project_id=project_id, name=name, model="m-1", **(where | more))
    async with sessions.begin() as session:
        session.add(row)
    return row


async def serve_hosted(project: LedgerProject, **more: Any) -> tables.Release:
    """Activate a release with a hosted model, beside whatever the model servers have."""
    entry = await hosted_entry(project.sessions, project.id, **more)
    async with project.sessions.begin() as session:
        release = await releases.propose(session, project.id, hosted(entry.id))
        return await releases.activate(session, release.id)


def hosted_executor(project: LedgerProject, model: ChatModel, limits: RolloutLimits | None = None) -> TaskExecutor:
    """With a local model of another profile, which has no answers."""
    executor = project.executor(ScriptedEngine(project.tokenizer), limits)
    return replace(executor, open_hosted=always(model))


def hosted_runner(project: LedgerProject, model: ChatModel, options: RunnerOptions = OPTIONS) -> Runner:
    return Runner(project.sessions, hosted_executor(project, model).execute, options)
