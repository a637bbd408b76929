"""Canaries from start to end: the tasks pinned to them, and their decisions."""

import asyncio
from hashlib import md5
from typing import Any

import pytest
from sqlalchemy import text

from app.base.errors import ConflictError, EngineError, InvalidError
from app.base.values import Probe
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.releases import canary, manifest_store
from app.releases import store as releases
from app.releases.canary import CanaryAction
from app.releases.promotion import Promoter
from app.releases.reconciler import ReleaseReconciler
from tests.support.canary_project import Project, apply_decision, begin, entries, open_project
from tests.support.ledger_project import until


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


@pytest.mark.slow
async def test_a_canary_gets_its_share_of_new_tasks_by_the_hash_of_their_ids(project: Project) -> None:
    before = (await project.claimed(1))[0]
    began = await begin(project, 25.0)
    tasks = await project.claimed(200)
    own = [task.id for task in tasks if task.release_id == began.id]
    hashes = {task.id: int(md5(f"{task.id}{began.id}".encode()).hexdigest()[:8], 16) for task in tasks}
    assert sorted(own) == sorted(each for each, number in hashes.items() if number < 0.25 * 2**32)
    assert 25 <= len(own) <= 75
    assert before.release_id != began.id


async def test_its_tasks_keep_it_after_it_ends_and_new_ones_get_the_active_release(project: Project) -> None:
    began = await begin(project, 100.0)
    [mine] = await project.claimed(1)
    assert mine.release_id == began.id
    async with project.sessions.begin() as session:
        await session.execute(text("UPDATE tasks SET lease_until = now()"))
    await canary.end(project.sessions, began.id, "key ops")
    [again] = (await project.claimed(1))[:1]
    assert (again.id, again.release_id, again.attempt) == (mine.id, began.id, 2)
    [other] = await project.claimed(1)
    assert other.release_id == (await project.release(1)).id


async def test_it_begins_once_the_model_servers_have_verified_its_weights(project: Project) -> None:
    probe = Probe((1, 2), ())
    async with project.sessions.begin() as session:
        await manifest_store.put(session, "f00d", base="seed", rank=16, project_id=None, probe=probe)
    began = await begin(project)
    assert project.servers.models == ["f00d"]
    assert (began.state, began.canary_percent) == (ReleaseState.CANARY, 50.0)
    [told] = await entries(project)
    assert (told.actor, told.action) == ("key ops", AuditAction.CANARY_BEGAN)
    assert (told.detail["percent"], told.detail["swap"]["replicas"][0]["probed"]) == (50.0, True)


async def test_if_a_server_refuses_only_the_audit_log_changes(project: Project) -> None:
    project.servers.refusal = EngineError("a replica is down")
    with pytest.raises(EngineError):
        await begin(project)
    assert (await project.release()).state is ReleaseState.CANDIDATE
    [told] = await entries(project)
    assert (told.action, told.detail["reason"]) == (AuditAction.REFUSED, "a replica is down")


async def test_a_project_has_one_canary_which_is_not_the_active_release(project: Project) -> None:
    other = await project.propose()
    with pytest.raises(InvalidError, match="more than 0 and at most 100 percent"):
        await begin(project, 0.0)
    began = await begin(project)
    with pytest.raises(ConflictError, match=f"release 2 is a canary.*DELETE /v1/releases/{began.id}/canary"):
        await canary.begin(project.promoter, project.sessions, other, 5.0, "key ops")
    await canary.end(project.sessions, began.id, "key ops")
    with pytest.raises(ConflictError, match="release 1 is active"):
        await canary.begin(project.promoter, project.sessions, (await project.release(1)).id, 5.0, "key ops")
    assert project.servers.models == ["f00d"]


async def test_a_worse_canary_is_rejected_automatically_with_the_evidence(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.record_evidence(session, project.candidate, {"verdict": "promote", "sgc": 9.0})
    await begin(project)
    await project.ended(project.candidate, 0.0, count=100)
    await project.ended((await project.release(1)).id, 1.0, count=100)
    assert await apply_decision(project) is CanaryAction.REJECT
    release = await project.release()
    assert (release.state, release.canary_percent) == (ReleaseState.REJECTED, None)
    assert release.evidence is not None
    assert release.evidence["sgc"] == 9.0
    assert release.evidence["verdict"] == "reject"
    assert release.evidence["reason"].startswith("as a canary: lower reward: reward -0.7")
    assert release.evidence["canary"]["decision"]["metrics"]["reward"]["tasks"] == {"canary": 100, "baseline": 100}
    told = (await entries(project))[0]
    assert (told.actor, told.action) == ("canary", AuditAction.CANARY_ENDED)
    assert (told.detail["state"], told.detail["decision"]["action"]) == ("rejected", "reject")
    with pytest.raises(ConflictError, match="release 2 is rejected, not a canary"):
        await apply_decision(project)


async def test_a_better_canary_is_promoted_and_an_undecided_one_continues(project: Project) -> None:
    await begin(project)
    assert await apply_decision(project) is CanaryAction.WAIT
    assert (await project.release()).state is ReleaseState.CANARY
    await project.ended(project.candidate, 1.0, count=100)
    await project.ended((await project.release(1)).id, 0.0, count=100)
    assert await apply_decision(project) is CanaryAction.PROMOTE
    release = await project.release()
    assert (release.state, release.canary_percent) == (ReleaseState.ACTIVE, None)
    assert release.evidence is not None
    assert release.evidence["reason"].startswith("as a canary: higher reward")
    assert (await entries(project))[0].detail["state"] == "active"
    assert [each.action for each in await entries(project)][:2] == [
        AuditAction.CANARY_ENDED,
        AuditAction.ACTIVATED,
    ]
    async with project.sessions() as session:
        written = await session.scalars(
            text(
                "SELECT xmin::text FROM audit_entries WHERE project_id = :id AND actor = 'canary' "
                "UNION SELECT xmin::text FROM releases WHERE project_id = :id"
            ),
            {"id": project.id},
        )
        assert len(written.all()) == 1, "one transaction: there is no promotion without its evidence"


@pytest.mark.slow
async def test_a_clock_that_was_set_back_before_the_active_release_began_does_not_stop_the_comparison(
    project: Project,
) -> None:
    later = text(
        "UPDATE releases SET activated_at = now() + interval '1 year' WHERE project_id = :id AND number = 1"
    )
    async with project.sessions.begin() as session:
        await session.execute(later, {"id": project.id})
        await releases.activate(session, await project.propose())
    active = await project.release(3)
    await begin(project)
    await project.ended(project.candidate, 1.0, count=100)
    await project.ended(active.id, 0.0, count=100)
    assert await apply_decision(project) is CanaryAction.PROMOTE


async def test_two_processes_that_promote_a_canary_audit_it_once(project: Project) -> None:
    class Overtaken(Promoter):
        """By another process, between the decision and its application."""

        async def activate(self, *args: Any, **kwargs: Any) -> tables.Release:
            assert await apply_decision(project) is CanaryAction.PROMOTE
            return await super().activate(*args, **kwargs)

    await begin(project)
    await project.ended(project.candidate, 1.0, count=50)
    await project.ended((await project.release(1)).id, 0.0, count=50)
    late = Overtaken(project.sessions, project.servers, "the prompt's hash")
    await canary.apply_decision(late, project.sessions, project.candidate)
    told = [each.action for each in await entries(project)]
    assert told == [AuditAction.CANARY_ENDED, AuditAction.ACTIVATED, AuditAction.CANARY_BEGAN]


async def test_a_canary_that_a_person_ends_is_a_candidate_again_with_its_metrics(project: Project) -> None:
    await begin(project)
    await project.ended(project.candidate, 1.0)
    ended = await canary.end(project.sessions, project.candidate, "key ops")
    assert (ended.state, ended.canary_percent) == (ReleaseState.CANDIDATE, None)
    assert ended.evidence is not None
    assert ended.evidence["canary"]["decision"]["action"] == "wait"
    assert "reason" not in ended.evidence
    assert [each.action for each in await entries(project)] == [AuditAction.CANARY_ENDED, AuditAction.CANARY_BEGAN]


@pytest.mark.slow
async def test_a_persons_decision_in_the_meantime_is_not_overruled(project: Project) -> None:
    other = await project.propose()
    await begin(project)
    await project.ended(project.candidate, 1.0, count=100)
    await project.ended((await project.release(1)).id, 0.0, count=100)
    project.servers.open.clear()
    project.servers.begun.clear()
    settling = asyncio.create_task(apply_decision(project))
    await project.servers.begun.wait()
    await canary.end(project.sessions, project.candidate, "key ops")
    project.servers.open.set()
    with pytest.raises(ConflictError, match="release 2 is candidate, not a canary"):
        await settling
    began = await begin(project)
    async with project.sessions.begin() as session:
        status = await canary.evaluate(session, began)
        await releases.activate(session, other)
        with pytest.raises(ConflictError, match="release 2 was compared with release 1, no longer active"):
            status.check(began, await releases.active(session, project.id))


@pytest.mark.slow
async def test_metrics_against_a_former_baseline_reject_nothing(project: Project) -> None:
    began, other = await begin(project), await project.propose()
    await project.ended(project.candidate, 0.0, count=100)
    await project.ended((await project.release(1)).id, 1.0, count=100)
    async with project.sessions() as session:
        status = await canary.evaluate(session, began)
    assert status.decision.action is CanaryAction.REJECT
    async with project.sessions.begin() as session:
        await releases.activate(session, other)
    with pytest.raises(ConflictError, match="release 2 was compared with release 1, no longer active"):
        await canary.end(project.sessions, began.id, "canary", status)
    assert (await project.release()).state is ReleaseState.CANARY


async def test_a_release_that_passed_the_gate_becomes_a_canary_and_then_active(
    project: Project,
) -> None:
    async with project.sessions.begin() as session:
        await releases.approve(session, project.candidate, {"verdict": "promote"}, canary_percent=50.0)

    async def is_in(state: ReleaseState) -> bool:
        return (await project.release()).state is state

    async with ReleaseReconciler(project.sessions, project.promoter, "the prompt's hash", pause=0.1):
        await until(lambda: is_in(ReleaseState.CANARY))
        await project.ended(project.candidate, 1.0, count=100)
        await project.ended((await project.release(1)).id, 0.0, count=100)
        await until(lambda: is_in(ReleaseState.ACTIVE))
    told = [(each.actor, each.action) for each in await entries(project)]
    assert (told[-1], told[-2]) == (("gate", AuditAction.CANARY_BEGAN), ("canary", AuditAction.ACTIVATED))
