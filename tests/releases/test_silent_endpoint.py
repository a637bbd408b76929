"""A hosted model whose endpoint is silent: it serves nothing, and nothing else of its project waits for it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from app.base.errors import ConflictError, EngineError
from app.base.values import BASE, Probe, hosted, hosted_id
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.tokenizer import Message
from app.releases import canary
from app.releases import store as releases
from app.releases.promotion import Promoter
from app.releases.swap import AdapterLoader, SwapReport
from tests.support.hosted_project import always, hosted_entry
from tests.support.rows import project_row
from tests.support.scripted_chat import ScriptedChatModel

PROMPT = "a prompt's hash"
ADAPTER = "a" * 32


class Endpoint:
    """Loads adapters at once; hosted models answer once they are allowed to."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def swap(self, model: str, probe: Probe | None) -> SwapReport:  # noqa: ARG002
        if hosted_id(model) is not None:
            self.asked.set()
            await self.answers.wait()
        return SwapReport(model=model, seconds=0.0)


class Silent(ScriptedChatModel):
    """Answers nothing."""

    async def _next(self, _: Sequence[Message]) -> str:
        await asyncio.Event().wait()
        return ""


class Project:
    """Its release 1 serves the base, 2 has an adapter, and 3 a hosted model."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.endpoint = sessions, Endpoint()
        self.promoter = Promoter(sessions, self.endpoint, PROMPT)

    async def open(self) -> "Project":
        async with self.sessions.begin() as session:
            self.id = (await project_row(session)).id
        self.entry = await hosted_entry(self.sessions, self.id)
        async with self.sessions.begin() as session:
            self.base = (await releases.active(session, self.id)).id
            self.local = (await releases.propose(session, self.id, ADAPTER)).id
            self.hosted = (await releases.propose(session, self.id, hosted(self.entry.id))).id
        return self

    async def activate(self, release: UUID) -> tables.Release:
        return await self.promoter.activate(release, "key me")

    async def active(self) -> int:
        async with self.sessions() as session:
            return (await releases.active(session, self.id)).number

    async def state(self, release: UUID) -> ReleaseState:
        async with self.sessions() as session:
            return (await releases.get(session, release)).state


@pytest.fixture
async def project(committed: Sessions) -> AsyncIterator[Project]:
    opened = await Project(committed).open()
    yield opened
    opened.endpoint.answers.set()


async def test_a_roll_back_does_not_wait_for_an_endpoint_and_is_not_undone_by_its_answer(project: Project) -> None:
    await project.activate(project.local)
    waiting = asyncio.create_task(project.activate(project.hosted))
    await project.endpoint.asked.wait()
    assert (await project.activate(project.base)).number == await project.active() == 1
    project.endpoint.answers.set()
    with pytest.raises(
        ConflictError, match="release 1 was activated while the hosted model of release 3 was asked"
    ):
        await waiting
    assert (await project.active(), await project.state(project.hosted)) == (1, ReleaseState.CANDIDATE)
    assert (await project.activate(project.hosted)).number == await project.active() == 3


async def test_a_roll_back_does_not_wait_for_the_endpoint_of_a_canary(project: Project) -> None:
    await project.activate(project.local)
    waiting = asyncio.create_task(canary.begin(project.promoter, project.sessions, project.hosted, 10, "key me"))
    await project.endpoint.asked.wait()
    assert (await project.activate(project.base)).number == 1
    project.endpoint.answers.set()
    assert (await waiting).state is ReleaseState.CANARY


async def test_an_endpoint_has_its_own_time_to_answer_before_it_serves(project: Project) -> None:
    silent = Silent()
    loader = AdapterLoader(None, project.sessions, None, always(silent), answer_seconds=0.2)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"m-1 at http://tables.test/v1 did not answer within 0.2 s"):
        await loader.swap(hosted(project.entry.id), None)
    assert len(silent.requests) == 1
    with pytest.raises(EngineError, match="did not answer"):
        await Promoter(project.sessions, loader, PROMPT).activate(project.hosted, "key me")
    assert (await project.active(), await project.state(project.hosted)) == (1, ReleaseState.CANDIDATE)
    assert (await loader.swap(BASE, None)).model == BASE
