"""Several versions of one skill: which of them serves whom, and what replaces, withdraws and brings back one."""

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables import ReleaseState, SkillState
from app.releases import store as releases
from app.skills import admission, evidence, moves
from app.skills import store as skills
from app.tasks import feedback
from tests.support.rows import project_row
from tests.support.skill_project import NARROW, WIDE, SkillProject

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState


@pytest.fixture
async def project(session: AsyncSession) -> SkillProject:
    return SkillProject(session, (await project_row(session)).id)


async def test_a_wider_version_is_offered_to_nobody_until_a_person_approves_it(project: SkillProject) -> None:
    first = await project.write(score=1.0)
    second = await project.write("two", manifest=WIDE, score=1.0)
    assert (second.state, second.held) == (QUARANTINED, True)
    assert second.reason == "it may do more than the present version: it calls supervisor.show_passwords"
    assert await project.offered("ann") == 1
    _, found = await admission.judge(project.session, second)
    assert found.missing == ("a person's approval",)
    await moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 1]
    await moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 2]
    await project.session.refresh(first)
    assert (first.state, first.reason) == (SUPERSEDED, "version 2 replaced it")


async def test_of_the_versions_on_probation_the_newest_are_replayed_first(project: SkillProject) -> None:
    for who in ("bob", "eve", "ann", "dan"):
        await project.write(who, principal=who)
    found = await evidence.in_probation(project.session, project.id, ["greet"])
    assert [each.version for each in found] == [4, 3, 2, 1]


async def test_the_same_wider_source_written_again_stays_held(project: SkillProject) -> None:
    await project.write()
    second = await project.write("two", manifest=WIDE)
    assert (await project.write("two", manifest=WIDE)).id == second.id
    assert await project.offered("ann") == 1
    third = await project.write("three", manifest=WIDE)
    assert await project.states() == [(3, QUARANTINED), (2, SUPERSEDED), (1, PROBATION)]
    assert third.held


async def test_a_version_that_is_not_wider_serves_its_principal_now_and_the_others_once_active(
    project: SkillProject,
) -> None:
    await project.write(manifest=WIDE)
    await project.write("two", principal="bob", manifest=NARROW, score=1.0)
    assert [await project.offered(who) for who in ("bob", "ann", "eve")] == [2, 1, 1]
    [second, _] = await skills.versions(project.session, project.id, "greet")
    await moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("bob", "ann", "eve")] == [2, 2, 2]
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]


async def test_a_principal_leaves_no_trail_of_versions_that_nobody_is_offered(project: SkillProject) -> None:
    for source in ("one", "two", "three", "four"):
        await project.write(source)
    assert await project.states() == [(4, PROBATION), (3, SUPERSEDED), (2, SUPERSEDED), (1, PROBATION)]
    assert [await project.offered(who) for who in ("ann", "bob")] == [4, 1]


async def test_the_source_of_anothers_quarantined_skill_is_a_skill_of_its_own(project: SkillProject) -> None:
    first = await project.write(taint="an answer of mail.list")
    second = await project.write(principal="bob")
    assert first.id != second.id
    assert (await project.write(principal="bob")).id == second.id


async def test_a_violation_takes_a_skill_from_everybody_until_a_person_approves_it(project: SkillProject) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is ACTIVE
    await moves.quarantine(project.session, skill.id, "it attempted mail.purge", 2)
    assert (skill.state, skill.held, skill.violations) == (QUARANTINED, True, 2)
    assert await project.offered("") is None
    await project.use(skill, "")
    assert skill.state is QUARANTINED
    await moves.approve(project.session, skill.id, "key me")
    await project.use(skill, "")
    assert (skill.state, skill.held) == (PROBATION, False), "evidence alone activates it no more"


async def test_a_retired_name_stays_retired_for_all_principals(project: SkillProject) -> None:
    await project.write(taint="an answer of mail.list", principal="bob")
    first = await project.write()
    await moves.retire(project.session, first.id, "key me")
    assert await project.states() == [(2, RETIRED), (1, RETIRED)]
    assert (await project.write("three", principal="eve")).state is RETIRED
    await moves.restore(project.session, first.id, "key me")
    assert (await project.write("four", principal="eve")).state is PROBATION


async def test_the_skills_of_a_rejected_release_are_withdrawn_and_what_they_replaced_returns(
    project: SkillProject,
) -> None:
    old = await project.write()
    await moves.approve(project.session, old.id, "key me")
    canary = await releases.propose(project.session, project.id, "f00d")
    written = await project.write("two", release_id=canary.id)
    await moves.approve(project.session, written.id, "key me")
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]
    await moves.withdraw(project.session, canary.id, project.id, "it was rejected")
    assert await project.states() == [(2, RETIRED), (1, ACTIVE)]
    canary.state = ReleaseState.REJECTED
    await project.session.flush()
    late = await project.write("three", release_id=canary.id)
    assert (late.state, late.reason) == (RETIRED, "its release 2 was rejected"), "a task that went on"
    again = await project.write("two")
    assert (again.state, again.version) == (PROBATION, 4), "another release may write it again"


async def test_a_version_that_waits_stays_out_once_its_release_is_rejected(project: SkillProject) -> None:
    first = await project.write(score=1.0)
    canary = await releases.propose(project.session, project.id, "f00d")
    second = await project.write("two", release_id=canary.id)
    assert second.state is SUPERSEDED, "the first has proved itself"
    await project.use(first, "ann", 0.0)
    for state, expected in ((ReleaseState.REJECTED, SUPERSEDED), (ReleaseState.RETIRED, PROBATION)):
        canary.state = state
        await project.session.flush()
        assert second.task_id is not None
        await feedback.add(project.session, second.task_id, 1.0)
        await admission.scored(project.session, second.task_id, 1.0)
        await project.session.refresh(second)
        assert second.state is expected
