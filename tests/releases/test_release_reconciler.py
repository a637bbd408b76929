"""Releases that passed the gate are activated, on a real database with recorded swaps instead of model servers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest

from app.base.errors import AdapterError, AppError, EngineError, UnreadableAdapterError
from app.db import runners, tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.projects import store as projects
from app.releases import canary
from app.releases import store as releases
from app.releases.promotion import Promoter
from app.releases.reconciler import ReleaseReconciler
from tests.support.recording_swapper import RecordingSwapper
from tests.support.rows import project_row, runner_report
from tests.support.single_connection import single_connection

PROMPT = "the present prompt"
WEIGHTS = "a" * 32


class ReconciledProject:
    """A project and two API processes; they get no notifications, so they are woken by hand."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.loads = sessions, RecordingSwapper()
        promoters = [Promoter(sessions, self.loads, PROMPT) for _ in range(2)]
        self.reconcilers = [ReleaseReconciler(sessions, promoter, PROMPT, pause=0.05) for promoter in promoters]

    async def open(self) -> "ReconciledProject":
        async with self.sessions.begin() as session:
            self.project_id = (await project_row(session)).id
        return self

    async def approve(self, model: str = WEIGHTS, *, over: str = "base", percent: float = 0.0) -> UUID:
        async with self.sessions.begin() as session:
            release = await releases.propose(session, self.project_id, model)
            evidence = {"verdict": "promote", "compared_with": {"number": 1, "model": over}}
            await releases.approve(session, release.id, evidence, percent)
        for reconciler in self.reconcilers:
            reconciler.wake()
        return release.id

    async def get(self, release_id: UUID) -> tables.Release:
        async with self.sessions() as session:
            return await releases.get(session, release_id)

    async def until(self, release_id: UUID, holds: Callable[[tables.Release], bool]) -> tables.Release:
        while not holds(release := await self.get(release_id)):  # noqa: ASYNC110  nothing notifies of it
            await asyncio.sleep(0.02)
        return release

    async def actions(self) -> list[tuple[str, AuditAction]]:
        """Oldest first."""
        async with self.sessions() as session:
            page = await audit.page(session, self.project_id, limit=50)
        return [(each.actor, each.action) for each in reversed(page.items)]


@pytest.fixture
async def setup(committed: Sessions) -> AsyncIterator[ReconciledProject]:
    setup = await ReconciledProject(committed).open()
    async with setup.reconcilers[0], setup.reconcilers[1]:
        yield setup


def serves(release: tables.Release) -> bool:
    return release.state is ReleaseState.ACTIVE


async def test_a_release_that_passed_is_activated_once_by_several_processes(setup: ReconciledProject) -> None:
    release = await setup.until(await setup.approve(), serves)
    assert release.prompt == PROMPT
    await asyncio.sleep(0.2)
    assert await setup.actions() == [("gate", AuditAction.ACTIVATED)]


@pytest.mark.parametrize(
    "cause", [EngineError("no model server answers"), UnreadableAdapterError("Input/output error")]
)
async def test_it_waits_for_what_may_be_mended_and_is_then_activated(
    setup: ReconciledProject, cause: AppError
) -> None:
    setup.loads.refusal = cause
    release_id = await setup.approve()
    while not await setup.actions():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    release = await setup.until(release_id, lambda one: "waiting" in (one.evidence or {}))
    assert release.state is ReleaseState.PASSED
    assert release.evidence is not None
    assert release.evidence["waiting"] == str(cause)
    setup.loads.refusal = None
    release = await setup.until(release_id, serves)
    assert release.evidence is not None
    assert "waiting" not in release.evidence
    assert await setup.actions() == [("gate", AuditAction.REFUSED), ("gate", AuditAction.ACTIVATED)]


async def test_weights_that_fail_verification_are_rejected_with_the_reason(setup: ReconciledProject) -> None:
    setup.loads.refusal = AdapterError("off by up to 0.3000, and 0.0010 is allowed")
    release_id = await setup.approve()
    release = await setup.until(release_id, lambda one: one.state is ReleaseState.REJECTED)
    assert release.evidence is not None
    assert release.evidence["verdict"] == "refused"
    assert "off by up to 0.3000" in release.evidence["reason"]
    assert release.evidence["compared_with"]["number"] == 1
    async with setup.sessions() as session:
        assert (await releases.active(session, setup.project_id)).number == 1


async def test_a_release_compared_with_other_weights_waits_for_a_person(setup: ReconciledProject) -> None:
    release_id = await setup.approve(over="b" * 32)
    release = await setup.until(release_id, lambda one: one.state is ReleaseState.CANDIDATE)
    assert release.evidence is not None
    assert f"POST /v1/releases/{release_id}/activate" in release.evidence["next"]


@pytest.mark.parametrize("refusal", [None, AdapterError("off by up to 0.3000")])
async def test_a_release_that_was_rolled_back_since_it_was_read_stays_retired(
    committed: Sessions, refusal: AppError | None
) -> None:
    setup = await ReconciledProject(committed).open()
    read = await setup.get(await setup.approve())
    promoter = Promoter(committed, setup.loads, PROMPT)
    await promoter.activate(read.id, "gate")
    await promoter.activate((await releases_of(setup))[-1].id, "key ops")
    setup.loads.refusal = refusal
    await setup.reconcilers[0]._activate(read)
    assert (await setup.get(read.id)).state is ReleaseState.RETIRED


async def test_a_canary_that_was_ended_since_it_had_passed_is_not_begun_again(committed: Sessions) -> None:
    setup = await ReconciledProject(committed).open()
    read = await setup.get(await setup.approve(percent=10.0))
    await canary.begin(Promoter(committed, setup.loads, PROMPT), committed, read.id, 10.0, "gate")
    await canary.end(committed, read.id, "key ops")
    await setup.reconcilers[0]._activate(read)
    assert (await setup.get(read.id)).state is ReleaseState.CANDIDATE
    assert setup.loads.models == [WEIGHTS], "they are not even loaded again"


async def test_the_release_of_a_run_with_a_canary_becomes_one(setup: ReconciledProject) -> None:
    release_id = await setup.approve(percent=10.0)
    release = await setup.until(release_id, lambda one: one.state is ReleaseState.CANARY)
    assert release.canary_percent == 10
    assert set(setup.loads.models) == {WEIGHTS}  # both reconcilers may load them before one of them decides
    assert await setup.actions() == [("gate", AuditAction.CANARY_BEGAN)]


async def test_a_release_that_passed_is_activated_even_if_its_notification_is_lost(committed: Sessions) -> None:
    setup = await ReconciledProject(committed).open()
    other = await ReconciledProject(committed).open()
    reconciler = ReleaseReconciler(
        committed, Promoter(committed, setup.loads, PROMPT), PROMPT, pause=0.05, idle=0.5
    )
    async with reconciler:
        await setup.until(await setup.approve(), serves)
        await asyncio.sleep(0.2)  # by now it has found nothing waiting
        await other.until(await other.approve(), serves)


async def test_a_project_that_is_deleted_meanwhile_blocks_no_other(committed: Sessions) -> None:
    gone, setup = await ReconciledProject(committed).open(), await ReconciledProject(committed).open()
    doomed = await gone.approve()

    class Deleting(Promoter):
        async def activate(self, release_id: UUID, actor: str, **options: Any) -> tables.Release:
            if release_id == doomed:
                async with committed.begin() as session:
                    await projects.delete(session, gone.project_id)
                raise AdapterError("it cannot be served")
            return await super().activate(release_id, actor, **options)

    release_id = await setup.approve()
    async with ReleaseReconciler(committed, Deleting(committed, setup.loads, PROMPT), PROMPT, pause=0.05):
        await setup.until(release_id, serves)


async def test_a_project_without_an_active_release_blocks_no_other(committed: Sessions) -> None:
    bare, setup = await ReconciledProject(committed).open(), await ReconciledProject(committed).open()
    async with committed.begin() as session:
        (await releases.active(session, bare.project_id)).state = ReleaseState.RETIRED
    async with setup.reconcilers[0]:
        await setup.until(await setup.approve(), serves)


async def test_a_reconciler_without_a_connection_for_a_while_continues(
    committed: Sessions, database_url: str
) -> None:
    setup = await ReconciledProject(committed).open()
    promoter = Promoter(committed, setup.loads, PROMPT)
    async with (
        single_connection(database_url) as database,
        ReleaseReconciler(database.sessions, promoter, PROMPT, pause=0.05) as reconciler,
    ):
        async with database.starved():
            await asyncio.sleep(0.5)
        release_id = await setup.approve()
        reconciler.wake()
        await setup.until(release_id, serves)


async def test_a_server_with_another_prompt_makes_a_release_with_it(committed: Sessions) -> None:
    setup = await ReconciledProject(committed).open()
    first = (await releases_of(setup))[0]
    async with setup.sessions.begin() as session:
        (await session.get_one(tables.Release, first.id)).prompt = "an older prompt"
    async with setup.reconcilers[0]:
        while (await releases_of(setup))[0].prompt != PROMPT:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def releases_of(setup: ReconciledProject) -> list[tables.Release]:
    """Newest first."""
    async with setup.sessions() as session:
        project = await projects.by_id(session, setup.project_id)
        return list(await releases.of_project(session, project.id))


async def test_the_prompt_of_a_release_changes_when_the_last_runner_with_the_one_before_is_gone(
    committed: Sessions,
) -> None:
    setup = await ReconciledProject(committed).open()
    async with committed.begin() as session:
        first = await releases.active(session, setup.project_id)
        first.prompt = "the prompt before"
        await runners.report(session, runner_report("of the version before", prompt="the prompt before"))
    async with setup.reconcilers[0]:
        await setup.until(await setup.approve(over="other weights"), lambda each: each.state == "candidate")
        assert (await setup.get(first.id)).prompt == "the prompt before"
        async with committed.begin() as session:
            await runners.remove(session, "of the version before")
        assert await setup.until(first.id, lambda each: each.prompt == PROMPT)
