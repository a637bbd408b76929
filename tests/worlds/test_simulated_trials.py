"""In the simulation, trials of releases last a number of its own days, whatever these take."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from app.base.errors import ConflictError
from app.client.server import SageClient
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import store as releases
from app.releases import watch
from tests.support.api_app import open_api_app
from tests.support.canary_project import Project, apply_decision, begin
from tests.support.listening_app import listening_app
from trainer.worlds.office.services import create_services
from trainer.worlds.simulate_live.simulation import Day, Services, SimulationPlan, Town

GATE = {"verdict": "promote", "compared_with": {"number": 1, "model": "base"}}
BEFORE = timedelta(seconds=100)  # when the first of the days ended: a trial has a minimum of seconds


@dataclass(frozen=True)
class Place:
    """A town, and the database of its project, whose release 2 is a canary."""

    town: Town
    project: Project

    async def end_trials(self, past: list[Day], decide: Callable[[], Awaitable[object]]) -> None:
        """While the server decides about releases."""
        ending = asyncio.create_task(asyncio.to_thread(self.town.end_trials, past))
        while not ending.done():
            with suppress(ConflictError):  # it has been decided
                await decide()
            await asyncio.sleep(0.2)
        await ending


@pytest.fixture
async def place(committed: Sessions, database_url: str) -> AsyncIterator[Place]:
    async with (
        open_api_app(committed, database_url) as api,
        listening_app(api.app, lifespan="off") as url,
        listening_app(create_services("secret"), lifespan="off") as office,
    ):
        key = (await api.key("admin"))["Authorization"].removeprefix("Bearer ")
        with SageClient(url, key) as server:
            services, plan = Services(office, "secret"), SimulationPlan()
            town = await asyncio.to_thread(Town.open, server, services, plan, "learning", lambda _: None)
            async with committed.begin() as session:
                found = await projects.by_name(session, town.project)
                candidate = await releases.propose(session, found.id, "f00d")
                await releases.record_evidence(session, candidate.id, GATE)
            project = Project(committed, found.id, candidate.id)
            await begin(project)
            row, earlier = tables.Release, datetime.now(UTC) - BEFORE - timedelta(seconds=1)
            async with committed.begin() as session:
                first = row.project_id == found.id, row.number == 1
                await session.execute(update(row).where(*first).values(activated_at=earlier))
                await session.execute(update(row).where(row.id == candidate.id).values(canary_at=earlier))
            yield Place(town, project)


def days(state: str) -> list[Day]:
    return [
        Day(
            day=number,
            arm="learning",
            solved=[True],
            kinds=["k"],
            scores=1,
            tokens=50,
            turns=2,
            skills_used=0.5,
            served_by={"1": 1},
            releases={"2": state},
            ended=(datetime.now(UTC) - BEFORE).timestamp(),
        )
        for number in range(14)
    ]


@pytest.mark.slow
async def test_a_canary_and_a_watch_end_after_fourteen_simulated_days(place: Place) -> None:
    project = place.project
    at = datetime.now(UTC) - BEFORE / 2
    for release_id in (project.candidate, (await project.release(1)).id):
        await project.ended(release_id, 1.0, count=100, started_at=at, finished_at=at)
    past = days("canary")
    await place.end_trials(past[1:], lambda: apply_decision(project))
    assert (await project.release()).state is ReleaseState.CANARY
    await place.end_trials(past, lambda: apply_decision(project))
    promoted = await project.release()
    assert promoted.evidence is not None
    assert promoted.evidence["canary"]["decision"]["metrics"]["errors"]["tasks"]["canary"] == 100
    async with project.sessions.begin() as session:
        long_ago = datetime.now(UTC) - 2 * BEFORE
        row = await releases.locked(session, promoted.id)
        row.watched_since, evidence = long_ago, row.evidence or {}
        row.evidence = evidence | {"watch": evidence["watch"] | {"since": long_ago.isoformat()}}
    past = days("active")
    await place.end_trials(past[1:], lambda: watch.apply_decision(project.promoter, project.sessions, promoted.id))
    assert (await project.release()).watched_against is not None
    await place.end_trials(past, lambda: watch.apply_decision(project.promoter, project.sessions, promoted.id))
    assert (await project.release()).watched_against is None
    async with project.sessions() as session:
        settings = projects.settings_of(await projects.by_id(session, project.id))
    assert (settings.canary_days, settings.watch_days) == (365, 365)
