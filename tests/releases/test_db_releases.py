"""Releases and which one serves; adapters and evaluations."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.run_settings import RunSettings
from app.base.values import Probe, ProbePoint
from app.db import notify, tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation
from app.runs import store as runs
from tests.support.rows import project_row


async def candidate(session: AsyncSession, model: str = "f00d") -> tables.Release:
    return await releases.propose(session, (await project_row(session)).id, model)


async def test_a_candidate_has_the_next_number_and_does_not_serve(session: AsyncSession) -> None:
    release = await candidate(session)
    assert (release.number, release.state, release.model) == (2, ReleaseState.CANDIDATE, "f00d")
    assert (await releases.propose(session, release.project_id, "cafe")).number == 3
    assert (await releases.active(session, release.project_id)).number == 1


async def test_a_run_that_proposes_again_gets_its_candidate_back(session: AsyncSession) -> None:
    project = await project_row(session)
    run = await runs.create(session, project.id, RunSettings())
    first = await releases.propose(session, project.id, "f00d", run.id)
    assert (await releases.propose(session, project.id, "f00d", run.id)).id == first.id
    assert (await releases.propose(session, project.id, "cafe", run.id)).number == first.number + 1


async def test_activating_a_release_retires_the_active_one_also_when_rolling_back(session: AsyncSession) -> None:
    release = await candidate(session)
    first = await releases.active(session, release.project_id)
    assert first.activated_at is not None
    now = await releases.activate(session, release.id)
    assert (now.state, (await releases.get(session, first.id)).state) == (
        ReleaseState.ACTIVE,
        ReleaseState.RETIRED,
    )
    assert now.activated_at is not None
    assert now.activated_at > first.activated_at
    assert (await releases.activate(session, release.id)).activated_at == now.activated_at, "again changes nothing"
    await releases.activate(session, first.id)
    assert (await releases.active(session, release.project_id)).id == first.id
    assert (await releases.get(session, release.id)).state is ReleaseState.RETIRED


async def test_a_rejected_release_is_activated_only_if_that_is_allowed(session: AsyncSession) -> None:
    release = await candidate(session)
    rejected = await releases.reject(session, release.id, {"sgc": -3.0})
    assert (rejected.state, rejected.evidence) == (ReleaseState.REJECTED, {"verdict": "reject", "sgc": -3.0})
    with pytest.raises(ConflictError, match="release 2 was rejected"):
        await releases.activate(session, release.id)
    assert (await releases.active(session, release.project_id)).number == 1
    assert (await releases.activate(session, release.id, allow_rejected=True)).state is ReleaseState.ACTIVE


async def test_a_release_that_passed_does_not_serve_yet_and_may_be_reopened_or_rejected(
    session: AsyncSession,
) -> None:
    release = await candidate(session)
    passed = await releases.approve(session, release.id, {"sgc": 9.0}, 12.5)
    assert (passed.state, passed.evidence, passed.canary_percent) == (ReleaseState.PASSED, {"sgc": 9.0}, 12.5)
    assert [each.id for each in await releases.in_state(session, ReleaseState.PASSED)] == [release.id]
    assert (await releases.active(session, release.project_id)).number == 1
    with pytest.raises(ConflictError, match="release 2 is passed: it cannot be passed"):
        await releases.approve(session, release.id, {})
    assert (await releases.reopen(session, release.id, {"next": "look"})).state is ReleaseState.CANDIDATE
    again = await releases.approve(session, release.id, {}, 0.0)
    assert again.canary_percent is None, "no canary is asked for"
    assert (await releases.reject(session, release.id, {})).state is ReleaseState.REJECTED


async def test_an_adapter_keeps_its_trainers_logprobs_of_fixed_tokens(session: AsyncSession) -> None:
    probe = Probe((1, 2, 3), (ProbePoint(1, 2, -0.1, -1.25), ProbePoint(2, 3, -2.5, -0.001)))
    await manifest_store.put(session, "beef", base="seed", rank=4, project_id=None, probe=probe)
    await manifest_store.put(session, "feed", base="seed", rank=4, project_id=None)
    assert await manifest_store.probe(session, "beef") == probe
    assert await manifest_store.probe(session, "feed") is None
    assert await manifest_store.probe(session, "base") is None


async def test_only_a_candidate_can_be_rejected(session: AsyncSession) -> None:
    release = await candidate(session)
    await releases.activate(session, release.id)
    with pytest.raises(ConflictError, match="release 2 is active: it cannot be rejected"):
        await releases.reject(session, release.id, {})


async def test_evidence_stays_with_the_release(session: AsyncSession) -> None:
    release = await candidate(session)
    await releases.record_evidence(session, release.id, {"sgc": 9.0})
    assert (await releases.activate(session, release.id)).evidence == {"sgc": 9.0}


async def test_concurrent_activations_leave_one_active_release(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)

    async def propose_and_activate(model: str) -> int:
        async with committed.begin() as session:
            release = await releases.propose(session, project.id, model)
        async with committed.begin() as session:
            return (await releases.activate(session, release.id)).number

    numbers = await asyncio.gather(*(propose_and_activate(f"model {each}") for each in range(6)))
    assert sorted(numbers) == [2, 3, 4, 5, 6, 7]
    async with committed() as session:
        states = [each.state for each in await releases.of_project(session, project.id)]
        assert states.count(ReleaseState.ACTIVE) == 1
        assert states.count(ReleaseState.RETIRED) == 6


async def test_servers_are_notified_of_a_release_when_it_is_committed(
    committed: Sessions, database_url: str
) -> None:
    plain = database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(plain, autocommit=True) as listener:
        await listener.execute(f"LISTEN {notify.RELEASES}")
        async with committed.begin() as session:
            release = await candidate(session)
            assert [notice async for notice in listener.notifies(timeout=0.1)] == []
        async with committed.begin() as session:
            await releases.activate(session, release.id)
        notified = [notice.payload async for notice in listener.notifies(timeout=300, stop_after=2)]
    assert str(release.id) in notified


async def test_an_unknown_release_or_project_is_named(session: AsyncSession) -> None:
    release = await candidate(session)
    for unknown in (
        releases.activate(session, release.project_id),
        releases.reject(session, release.project_id, {}),
        releases.propose(session, release.id, "f00d"),
    ):
        with pytest.raises(NotFoundError, match="has the id"):
            await unknown


async def test_the_same_adapter_twice_is_one_row(session: AsyncSession) -> None:
    owner = uuid4()
    await manifest_store.put(session, "f00d", base="seed", rank=16, project_id=owner)
    again = await manifest_store.put(session, "f00d", base="seed", rank=16, project_id=uuid4())
    assert (again.hash, again.base, again.rank, again.project_id) == ("f00d", "seed", 16, owner)
    with pytest.raises(NotFoundError, match="cafe"):
        await manifest_store.get(session, "cafe")


async def test_evaluations_are_found_by_release(session: AsyncSession) -> None:
    release = await candidate(session)
    run = await runs.create(session, release.project_id, RunSettings())
    settings, figures = {"scenarios": 60}, {"sgc": 90.5}
    for model in ("base", "f00d"):
        new = NewEvaluation(
            model=model,
            environment="office",
            settings=settings,
            figures=figures,
            run_id=run.id,
            release_id=release.id,
        )
        await exams.add(session, release.project_id, new)
    found = await exams.of_release(session, release.id)
    assert [(each.model, each.figures, each.run_id) for each in found] == [
        ("base", figures, run.id),
        ("f00d", figures, run.id),
    ]
