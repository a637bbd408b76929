"""When the trial of a canary ends, how its share is raised, and what becomes of its skills."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, update

from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState, SkillState
from app.projects import store as projects
from app.releases import canary, trials_store
from app.releases import store as releases
from app.releases.canary import CanaryAction
from app.skills import store as skills
from tests.support.canary_project import Project, apply_decision, begin, entries, evaluate, open_project

GATE = {"verdict": "promote", "compared_with": {"number": 1, "model": "base"}}


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


async def _began_days_ago(project: Project, days: float, evidence: dict[str, Any]) -> None:
    async with project.sessions.begin() as session:
        await releases.record_evidence(session, project.candidate, evidence)
    await begin(project)
    async with project.sessions.begin() as session:
        row = tables.Release
        earlier = func.clock_timestamp() - timedelta(days=days)
        await session.execute(update(row).where(row.id == project.candidate).values(canary_at=earlier))


async def test_without_traffic_a_canary_that_passed_the_gate_is_promoted_after_its_days(project: Project) -> None:
    await _began_days_ago(project, 2.9, GATE)
    assert await apply_decision(project) is CanaryAction.WAIT
    async with project.sessions.begin() as session:
        await projects.change_settings(session, project.id, {"canary_days": 2.5})
    assert await apply_decision(project) is CanaryAction.PROMOTE
    release = await project.release()
    assert release.state is ReleaseState.ACTIVE
    assert release.watched_against == (await project.release(1)).id, "it has yet to show what it is worth"


async def test_one_that_the_gate_compared_with_other_weights_is_a_candidate_again_after_its_days(
    project: Project,
) -> None:
    await _began_days_ago(project, 14.1, GATE | {"compared_with": {"number": 7, "model": "cafe"}})
    mine = await _learn(project, project.candidate)
    assert await apply_decision(project) is CanaryAction.STOP
    assert (await project.release()).state is ReleaseState.CANDIDATE
    assert (await _standing(project, mine))[0] is SkillState.ACTIVE


async def test_where_nothing_was_examined_a_canary_without_a_certain_gain_is_a_candidate_again(
    project: Project,
) -> None:
    await _began_days_ago(project, 14.1, GATE | {"verdict": "canary"})
    assert await apply_decision(project) is CanaryAction.STOP
    assert (await project.release()).state is ReleaseState.CANDIDATE


async def test_a_canary_that_a_person_began_has_no_time_limit(project: Project) -> None:
    await _began_days_ago(project, 300, {})
    assert await apply_decision(project) is CanaryAction.WAIT


async def test_its_share_is_raised_once_as_more_errors_are_ruled_out(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.record_evidence(session, project.candidate, GATE)
    await begin(project, 20.0)
    active = (await project.release(1)).id
    for _ in range(10):
        await project.ended(project.candidate, None, count=2)
        await project.ended(active, None, count=8)
    assert await apply_decision(project) is CanaryAction.WAIT
    raised = await project.release()
    assert raised.canary_percent is not None
    assert 30.0 <= raised.canary_percent <= 50.0
    assert await apply_decision(project) is CanaryAction.WAIT
    assert (await project.release()).canary_shares == raised.canary_shares
    first, second = trials_store.shares_of(raised)
    assert (first.percent, first.since, second.percent) == (20.0, raised.canary_at, raised.canary_percent)
    told = (await entries(project))[0]
    assert (told.actor, told.action) == ("canary", AuditAction.CANARY_RAISED)
    assert (told.detail["from"], told.detail["percent"]) == (20.0, raised.canary_percent)
    found = (await evaluate(project)).metrics["errors"]
    assert found.tasks == {"canary": 20, "baseline": 80}, "earlier tasks count with the share of their time"


@pytest.mark.slow
async def test_its_share_stays_if_a_person_began_it(project: Project) -> None:
    await begin(project, 20.0)
    await project.ended(project.candidate, None, count=20)
    await project.ended((await project.release(1)).id, None, count=80)
    assert await apply_decision(project) is CanaryAction.WAIT
    assert (await project.release()).canary_percent == 20.0


@pytest.mark.slow
async def test_what_ends_after_its_days_does_not_count(project: Project) -> None:
    await _began_days_ago(project, 14.1, GATE)
    await project.ended(project.candidate, 0.0, count=100)
    await project.ended((await project.release(1)).id, 1.0, count=100)
    assert await apply_decision(project) is CanaryAction.PROMOTE


async def _learn(project: Project, release_id: UUID) -> UUID:
    made = skills.NewSkill(
        name="greet", signature="greet()", source="x", apis=[], instruction="", release_id=release_id
    )
    async with project.sessions.begin() as session:
        return (await skills.add(session, project.id, made)).id


async def _standing(project: Project, skill_id: UUID) -> tuple[SkillState, str]:
    async with project.sessions() as session:
        skill = await skills.get(session, skill_id)
        return skill.state, skill.reason


async def test_the_skills_of_a_rejected_canary_are_withdrawn_with_it(project: Project) -> None:
    began = await begin(project)
    mine = await _learn(project, began.id)
    await project.ended((await project.release(1)).id, 1.0, 200)
    await project.ended(began.id, 0.0, 200)
    await apply_decision(project)
    assert (await project.release()).state is ReleaseState.REJECTED
    assert await _standing(project, mine) == (SkillState.RETIRED, "its release 2 was rejected as a canary")


async def test_a_canary_that_a_person_ends_keeps_its_skills(project: Project) -> None:
    began = await begin(project)
    mine = await _learn(project, began.id)
    await canary.end(project.sessions, began.id, "key ops")
    assert (await _standing(project, mine))[0] is SkillState.ACTIVE
