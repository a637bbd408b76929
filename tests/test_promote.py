"""Activation of releases on a real database, with recorded swaps instead of model servers."""

import asyncio
from uuid import UUID

import pytest

from app.db import adapters, audit, models, releases
from app.db.database import Sessions
from app.db.models import AuditAction, ReleaseState
from app.errors import AdapterError, AppError, ConflictError, EngineError
from app.records import Json
from app.release.promote import Promoter, SupersededError, check_baseline
from tests.recording_swapper import RecordingSwapper
from tests.rows import project_row

PROMPT = "a prompt's hash"


class Floor:
    """A project whose release 1 serves the base, and a candidate."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.loads = sessions, RecordingSwapper()
        self.promoter = Promoter(sessions, self.loads, PROMPT)

    async def open(self) -> "Floor":
        async with self.sessions.begin() as session:
            self.project_id = (await project_row(session)).id
        self.candidate = await self.propose("a" * 32)
        return self

    async def propose(self, model: str) -> UUID:
        async with self.sessions.begin() as session:
            return (await releases.propose(session, self.project_id, model)).id

    async def active(self) -> models.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def log(self) -> list[tuple[str, AuditAction, dict[str, Json]]]:
        """Oldest first."""
        async with self.sessions() as session:
            page = await audit.page(session, self.project_id, limit=50)
        return [(each.actor, each.action, each.detail) for each in reversed(page.items)]


@pytest.fixture
async def floor(committed: Sessions) -> Floor:
    return await Floor(committed).open()


async def test_a_release_is_activated_once_verified_and_audited_with_its_report(
    floor: Floor,
) -> None:
    row = await floor.promoter.activate(floor.candidate, "key ops")
    assert (row.state, row.model, row.prompt) == (ReleaseState.ACTIVE, "a" * 32, PROMPT)
    assert row.skills is not None
    assert row.tools is not None
    assert floor.loads.models == ["a" * 32]
    [(actor, action, detail)] = await floor.log()
    assert (actor, action, detail["previous"]) == ("key ops", AuditAction.ACTIVATED, 1)
    assert detail["serves"] == {"model": row.model, "skills": row.skills, "tools": row.tools, "prompt": PROMPT}
    [replica] = detail["swap"]["replicas"]
    assert replica["url"] == "http://engine"
    assert replica.keys() >= {"load_seconds", "probe_seconds", "error", "distance", "probed"}


@pytest.mark.parametrize("refusal", [AdapterError("off by 0.3"), EngineError("unreachable")])
async def test_a_refusal_changes_nothing_and_is_audited_once_however_often_it_is_retried(
    floor: Floor, refusal: AppError
) -> None:
    floor.loads.refusal = refusal
    for _ in range(3):
        with pytest.raises(type(refusal), match=str(refusal)):
            await floor.promoter.activate(floor.candidate, "gate")
    assert (await floor.active()).number == 1
    told = {"error": type(refusal).__name__, "reason": str(refusal)}
    assert await floor.log() == [("gate", AuditAction.REFUSED, told)]
    floor.loads.refusal = None
    assert (await floor.promoter.activate(floor.candidate, "gate")).state is ReleaseState.ACTIVE


async def test_of_two_concurrent_swaps_the_second_is_refused_naming_the_first(floor: Floor) -> None:
    other = await floor.propose("b" * 32)
    floor.loads.open.clear()
    first = asyncio.create_task(floor.promoter.activate(floor.candidate, "key one"))
    await floor.loads.begun.wait()
    with pytest.raises(ConflictError, match="release 2 is being activated"):
        await floor.promoter.activate(other, "key two")
    floor.loads.open.set()
    assert (await first).number == 2
    assert (await floor.promoter.activate(other, "key two")).number == 3
    assert floor.loads.models == ["a" * 32, "b" * 32]


async def test_an_adapter_that_is_being_activated_is_not_evicted(floor: Floor, committed: Sessions) -> None:
    other = await Floor(committed).open()
    release_id, _ = await floor.propose("b" * 32), await other.propose("c" * 32)

    async def needed() -> set[str]:
        async with committed() as session:
            return await adapters.needed(session)

    floor.loads.open.clear()
    swap = asyncio.create_task(floor.promoter.activate(release_id, "key ops"))
    await floor.loads.begun.wait()
    assert await needed() == {"b" * 32}
    floor.loads.open.set()
    await swap
    assert await needed() == set()


async def test_swaps_of_two_projects_do_not_wait_for_each_other(floor: Floor, committed: Sessions) -> None:
    other = await Floor(committed).open()
    floor.loads.open.clear()
    first = asyncio.create_task(floor.promoter.activate(floor.candidate, "gate"))
    await floor.loads.begun.wait()
    assert (await other.promoter.activate(other.candidate, "gate")).state is ReleaseState.ACTIVE
    floor.loads.open.set()
    await first


async def test_a_cancelled_swap_does_not_block_the_next(floor: Floor) -> None:
    floor.loads.open.clear()
    first = asyncio.create_task(floor.promoter.activate(floor.candidate, "gate"))
    await floor.loads.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    floor.loads.open.set()
    assert (await floor.promoter.activate(floor.candidate, "gate")).state is ReleaseState.ACTIVE


async def test_activating_the_active_release_asks_no_server_and_audits_nothing(floor: Floor) -> None:
    await floor.promoter.activate((await floor.active()).id, "key ops")
    assert floor.loads.models == []
    assert await floor.log() == []


async def test_activating_a_release_that_became_active_meanwhile_audits_nothing(floor: Floor) -> None:
    floor.loads.open.clear()
    late = asyncio.create_task(floor.promoter.activate(floor.candidate, "key late"))
    await floor.loads.begun.wait()
    async with floor.sessions.begin() as session:
        await releases.activate(session, floor.candidate)
    floor.loads.open.set()
    assert (await late).state is ReleaseState.ACTIVE
    assert await floor.log() == []


async def test_a_rejected_release_is_not_even_loaded_unless_someone_insists(floor: Floor) -> None:
    async with floor.sessions.begin() as session:
        await releases.reject(session, floor.candidate, {"reason": "worse"})
    with pytest.raises(ConflictError, match="was rejected"):
        await floor.promoter.activate(floor.candidate, "key ops")
    assert floor.loads.models == []
    row = await floor.promoter.activate(floor.candidate, "key ops", allow_rejected=True)
    assert row.state is ReleaseState.ACTIVE


async def test_a_rollback_to_missing_weights_changes_nothing(floor: Floor) -> None:
    await floor.promoter.activate(floor.candidate, "gate")
    newer = await floor.propose("b" * 32)
    await floor.promoter.activate(newer, "gate")
    floor.loads.refusal = AdapterError("there is no adapter in ...")
    with pytest.raises(AdapterError, match="there is no adapter"):
        await floor.promoter.activate(floor.candidate, "key ops")
    assert (await floor.active()).id == newer


async def test_a_release_compared_with_other_weights_is_not_activated(floor: Floor) -> None:
    async with floor.sessions.begin() as session:
        await releases.record_evidence(
            session, floor.candidate, {"compared_with": {"number": 1, "model": "c" * 32}}
        )
    with pytest.raises(SupersededError, match=r"compared with release 1, but release 1, with other"):
        await floor.promoter.activate(floor.candidate, "gate", check=check_baseline)
    assert (await floor.active()).number == 1
    assert (await floor.promoter.activate(floor.candidate, "key ops")).state is ReleaseState.ACTIVE
