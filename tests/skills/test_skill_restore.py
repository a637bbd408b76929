"""What brings a skill back that was taken out: it never has more than it had."""

import asyncio

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, SkillState
from app.releases import store as releases
from app.skills import admission, moves
from app.skills.admission import admit
from tests.support.rows import new_skill, project_row
from tests.support.skill_project import WIDE, SkillProject

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState
TAINT = "an answer of mail.list"


@pytest.fixture
async def project(session: AsyncSession) -> SkillProject:
    return SkillProject(session, (await project_row(session)).id)


@pytest.mark.parametrize(
    ("taint", "approved", "state"),
    [(TAINT, 0, QUARANTINED), ("", 0, PROBATION), (TAINT, 1, PROBATION), ("", 1, ACTIVE)],
)
async def test_a_restored_skill_has_the_state_that_it_had(
    project: SkillProject, taint: str, approved: int, state: SkillState
) -> None:
    skill = await project.write(taint=taint)
    for _ in range(approved):
        await moves.approve(project.session, skill.id, "key me")
    await moves.retire(project.session, skill.id, "key me")
    await moves.restore(project.session, skill.id, "key me")
    assert (skill.state, skill.held) == (state, False)
    assert (await project.audited())[-1] == (1, "retired", state, "it was restored")


async def test_a_skill_that_was_held_is_still_held_when_it_is_restored(project: SkillProject) -> None:
    await project.write()
    wide = await project.write("two", manifest=WIDE)
    await moves.retire(project.session, wide.id, "key me")
    assert (wide.state, wide.held) == (RETIRED, True)
    await moves.restore(project.session, wide.id, "key me")
    assert (wide.state, wide.held) == (QUARANTINED, True)
    assert await project.offered("ann") is None
    assert (await moves.approve(project.session, wide.id, "key me")).state is PROBATION
    assert not wide.held


async def test_what_a_skill_attempted_before_or_after_it_was_retired_is_not_forgotten(
    project: SkillProject,
) -> None:
    for retired_first in (True, False):
        skill = await project.write(str(retired_first), principal=str(retired_first))
        await moves.approve(project.session, skill.id, "key me")
        if retired_first:
            await moves.retire(project.session, skill.id, "key me")
        await moves.quarantine(project.session, skill.id, "it attempted mail.purge", 1)
        if retired_first:
            assert skill.state is RETIRED
            assert (await project.audited())[-1] == (1, "retired", "retired", "it attempted mail.purge")
        else:
            await moves.retire(project.session, skill.id, "key me")
        await moves.restore(project.session, skill.id, "key me")
        assert (skill.state, skill.held, skill.violations) == (QUARANTINED, True, 1)
        _, found = await admission.judge(project.session, skill)
        assert found.missing == ("a person's approval",)


async def test_a_version_that_was_superseded_while_it_was_held_replaces_nothing_until_it_is_approved(
    project: SkillProject,
) -> None:
    await project.write()
    second = await project.write("two", manifest=WIDE)
    await project.write("three", manifest=WIDE)
    assert await project.states() == [(3, QUARANTINED), (2, SUPERSEDED), (1, PROBATION)]
    await moves.restore(project.session, second.id, "key me")
    assert (second.state, second.held) == (QUARANTINED, True)
    assert await project.states() == [(3, QUARANTINED), (2, QUARANTINED), (1, PROBATION)]
    assert await project.offered("ann") == 1


async def test_restoring_a_version_by_hand_replaces_every_other_one(project: SkillProject) -> None:
    first = await project.write()
    second = await project.write("two", principal="bob")
    for each in (first, second):
        await moves.approve(project.session, each.id, "key me")
    await project.write("three", principal="eve", taint=TAINT)
    assert await project.states() == [(3, QUARANTINED), (2, ACTIVE), (1, SUPERSEDED)]
    await moves.restore(project.session, first.id, "key me")
    assert await project.states() == [(3, SUPERSEDED), (2, SUPERSEDED), (1, ACTIVE)]


async def test_a_skill_that_was_not_taken_out_cannot_be_restored(project: SkillProject) -> None:
    skill = await project.write(taint=TAINT)
    for state in (QUARANTINED, PROBATION, ACTIVE):
        with pytest.raises(ConflictError, match=f"greet version 1 is {state}: only a skill that is superseded or"):
            await moves.restore(project.session, skill.id, "key me")
        if state is not ACTIVE:
            await moves.approve(project.session, skill.id, "key me")


async def test_a_quarantined_skill_becomes_active_only_by_way_of_probation(project: SkillProject) -> None:
    skill = await project.write(taint=TAINT)
    with pytest.raises(ConflictError, match="greet version 1 is quarantined: it cannot be active"):
        await moves.move(project.session, skill, ACTIVE, skill.rev)
    assert await project.states() == [(1, QUARANTINED)]


@pytest.mark.parametrize(("policy", "taint", "state"), [("evidence", TAINT, QUARANTINED), ("open", TAINT, ACTIVE)])
async def test_a_version_written_while_its_name_was_retired_starts_where_it_would_have_started(
    project: SkillProject, policy: str, taint: str, state: SkillState
) -> None:
    await project.policy(policy)
    await moves.retire(project.session, (await project.write()).id, "key me")
    second = await project.write("two", taint=taint)
    assert second.state is RETIRED
    assert (await moves.restore(project.session, second.id, "key me")).state is state


async def test_what_a_withdrawn_version_had_replaced_returns_to_the_state_that_it_had(
    project: SkillProject,
) -> None:
    await project.write()
    await project.write("two", manifest=WIDE)
    canary = await releases.propose(project.session, project.id, "f00d")
    third = await project.write("three", release_id=canary.id)
    await moves.approve(project.session, third.id, "key me")
    assert await project.states() == [(3, ACTIVE), (2, SUPERSEDED), (1, SUPERSEDED)]
    await moves.withdraw(project.session, canary.id, project.id, "it was rejected")
    assert await project.states() == [(3, RETIRED), (2, SUPERSEDED), (1, PROBATION)]


async def test_a_skill_stored_while_its_release_is_being_rejected_is_retired(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        canary = await releases.propose(session, project.id, "f00d")

    async def write() -> tables.Skill:
        async with committed.begin() as session:
            new = new_skill()
            return await admit(session, project.id, msgspec.structs.replace(new, release_id=canary.id))

    async with committed.begin() as session:
        (await releases.get(session, canary.id)).state = ReleaseState.REJECTED
        await moves.withdraw(session, canary.id, project.id, "it was rejected")
        writing = asyncio.create_task(write())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(writing), 0.3)
    assert (await writing).state is RETIRED
