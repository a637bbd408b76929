"""Activation of releases on a real database, with recorded swaps instead of model servers."""

import asyncio
from uuid import UUID

import pytest

from app.base.errors import AdapterError, AppError, ConflictError, EngineError
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.promotion import Promoter, SupersededError, check_baseline
from tests.support.recording_swapper import RecordingSwapper
from tests.support.rows import project_row

PROMPT = "a prompt's hash"


class Project:
    """A project whose release 1 serves the base, and a candidate."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.loads = sessions, RecordingSwapper()
        self.promoter = Promoter(sessions, self.loads, PROMPT)

    async def open(self) -> "Project":
        async with self.sessions.begin() as session:
            self.project_id = (await project_row(session)).id
        self.candidate = await self.propose("a" * 32)
        return self

    async def propose(self, model: str) -> UUID:
        async with self.sessions.begin() as session:
            return (await releases.propose(session, self.project_id, model)).id

    async def active(self) -> tables.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def log(self) -> list[tuple[str, AuditAction, dict[str, Json]]]:
        """Oldest first."""
        async with self.sessions() as session:
            page = await audit.page(session, self.project_id, limit=50)
        return [(each.actor, each.action, each.detail) for each in reversed(page.items)]


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await Project(committed).open()


async def test_a_release_is_activated_once_verified_and_audited_with_its_report(
    project: Project,
) -> None:
    row = await project.promoter.activate(project.candidate, "key ops")
    assert (row.state, row.model, row.prompt) == (ReleaseState.ACTIVE, "a" * 32, PROMPT)
    assert row.skills is not None
    assert row.tools is not None
    assert project.loads.models == ["a" * 32]
    [(actor, action, detail)] = await project.log()
    assert (actor, action, detail["previous"]) == ("key ops", AuditAction.ACTIVATED, 1)
    assert detail["serves"] == {"model": row.model, "skills": row.skills, "tools": row.tools, "prompt": PROMPT}
    [replica] = detail["swap"]["replicas"]
    assert replica["url"] == "http://engine"
    assert replica.keys() >= {"load_seconds", "probe_seconds", "error", "distance", "probed"}


@pytest.mark.parametrize("refusal", [AdapterError("off by 0.3"), EngineError("unreachable")])
async def test_a_refusal_changes_nothing_and_is_audited_once_however_often_it_is_retried(
    project: Project, refusal: AppError
) -> None:
    project.loads.refusal = refusal
    for _ in range(3):
        with pytest.raises(type(refusal), match=str(refusal)):
            await project.promoter.activate(project.candidate, "gate")
    assert (await project.active()).number == 1
    told = {"error": type(refusal).__name__, "reason": str(refusal)}
    assert await project.log() == [("gate", AuditAction.REFUSED, told)]
    project.loads.refusal = None
    assert (await project.promoter.activate(project.candidate, "gate")).state is ReleaseState.ACTIVE


async def test_of_two_concurrent_swaps_the_second_is_refused_naming_the_first(project: Project) -> None:
    other = await project.propose("b" * 32)
    project.loads.open.clear()
    first = asyncio.create_task(project.promoter.activate(project.candidate, "key one"))
    await project.loads.begun.wait()
    with pytest.raises(ConflictError, match="release 2 is being activated"):
        await project.promoter.activate(other, "key two")
    project.loads.open.set()
    assert (await first).number == 2
    assert (await project.promoter.activate(other, "key two")).number == 3
    assert project.loads.models == ["a" * 32, "b" * 32]


async def test_an_adapter_that_is_being_activated_is_not_evicted(project: Project, committed: Sessions) -> None:
    other = await Project(committed).open()
    release_id, _ = await project.propose("b" * 32), await other.propose("c" * 32)

    async def needed() -> set[str]:
        async with committed() as session:
            return await manifest_store.needed(session)

    project.loads.open.clear()
    swap = asyncio.create_task(project.promoter.activate(release_id, "key ops"))
    await project.loads.begun.wait()
    assert await needed() == {"b" * 32}
    project.loads.open.set()
    await swap
    assert await needed() == set()


async def test_swaps_of_two_projects_do_not_wait_for_each_other(project: Project, committed: Sessions) -> None:
    other = await Project(committed).open()
    project.loads.open.clear()
    first = asyncio.create_task(project.promoter.activate(project.candidate, "gate"))
    await project.loads.begun.wait()
    assert (await other.promoter.activate(other.candidate, "gate")).state is ReleaseState.ACTIVE
    project.loads.open.set()
    await first


async def test_a_cancelled_swap_does_not_block_the_next(project: Project) -> None:
    project.loads.open.clear()
    first = asyncio.create_task(project.promoter.activate(project.candidate, "gate"))
    await project.loads.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    project.loads.open.set()
    assert (await project.promoter.activate(project.candidate, "gate")).state is ReleaseState.ACTIVE


async def test_activating_the_active_release_asks_no_server_and_audits_nothing(project: Project) -> None:
    await project.promoter.activate((await project.active()).id, "key ops")
    assert project.loads.models == []
    assert await project.log() == []


async def test_activating_a_release_that_became_active_meanwhile_audits_nothing(project: Project) -> None:
    project.loads.open.clear()
    late = asyncio.create_task(project.promoter.activate(project.candidate, "key late"))
    await project.loads.begun.wait()
    async with project.sessions.begin() as session:
        await releases.activate(session, project.candidate)
    project.loads.open.set()
    assert (await late).state is ReleaseState.ACTIVE
    assert await project.log() == []


async def test_a_rejected_release_is_not_even_loaded_unless_someone_insists(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.reject(session, project.candidate, {"reason": "worse"})
    with pytest.raises(ConflictError, match="was rejected"):
        await project.promoter.activate(project.candidate, "key ops")
    assert project.loads.models == []
    row = await project.promoter.activate(project.candidate, "key ops", allow_rejected=True)
    assert row.state is ReleaseState.ACTIVE


async def test_a_rollback_to_missing_weights_changes_nothing(project: Project) -> None:
    await project.promoter.activate(project.candidate, "gate")
    newer = await project.propose("b" * 32)
    await project.promoter.activate(newer, "gate")
    project.loads.refusal = AdapterError("there is no adapter in ...")
    with pytest.raises(AdapterError, match="there is no adapter"):
        await project.promoter.activate(project.candidate, "key ops")
    assert (await project.active()).id == newer


async def test_a_release_compared_with_other_weights_is_not_activated(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.record_evidence(
            session, project.candidate, {"compared_with": {"number": 1, "model": "c" * 32}}
        )
    with pytest.raises(SupersededError, match=r"compared with release 1, but release 1, with other"):
        await project.promoter.activate(project.candidate, "gate", check=check_baseline)
    assert (await project.active()).number == 1
    assert (await project.promoter.activate(project.candidate, "key ops")).state is ReleaseState.ACTIVE
