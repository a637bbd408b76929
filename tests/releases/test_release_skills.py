"""The skills of releases: a rollback restores them, and gives none more than it had."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.tables import SkillState
from app.releases import manifest
from app.releases import store as releases
from app.skills import admission, moves
from app.skills import store as skills
from app.skills.admission import admit
from tests.support.release_steps import activate
from tests.support.rows import new_skill, project_row, task_row
from tests.support.skill_project import changed_since


async def library(session: AsyncSession, project_id: UUID) -> list[tuple[str, int]]:
    found = await skills.page(session, skills.SkillFilter(project_id=project_id, state=SkillState.ACTIVE))
    return sorted((each.name, each.version) for each in found.items)


async def learn(session: AsyncSession, project_id: UUID, name: str, body: str = "...") -> tables.Skill:
    return await skills.add(session, project_id, new_skill(name, f"def {name}(): {body}"))


async def test_rolling_back_restores_exactly_the_skills_of_that_time(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    same, _, lost, gone = [await learn(session, project.id, name) for name in ("same", "better", "lost", "gone")]
    await activate(session, await releases.propose(session, project.id, "f00d"))
    assert len(await library(session, project.id)) == 4, "what serves anew finds the library as it is"
    await learn(session, project.id, "better", "return 2")
    new = await learn(session, project.id, "new")
    await moves.retire(session, lost.id)
    await moves.delete(session, gone.id)
    rev = same.rev
    announced = await manifest.planned(session, first, await releases.active(session, project.id))
    changed = (await activate(session, first))["skills"]
    assert msgspec.to_builtins(announced) == changed
    assert await library(session, project.id) == [("better", 1), ("lost", 1), ("same", 1)]
    assert {how: [(each["name"], each["version"]) for each in rows] for how, rows in changed.items()} == {
        "restored": [("better", 1), ("lost", 1)],
        "superseded": [("better", 2)],
        "withdrawn": [("new", 1)],
        "deleted": [("gone", 1)],
    }
    moved = {each.name for each in await changed_since(session, project.id, rev)}
    assert moved >= {"better", "lost", "new"}, "caches follow"
    assert (await moves.restore(session, new.id)).state is SkillState.ACTIVE


async def test_a_skill_removed_by_a_rollback_can_be_learned_again_but_not_one_retired_by_hand(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await learn(session, project.id, "new")
    await moves.retire(session, (await learn(session, project.id, "banned")).id)
    await activate(session, first)
    assert await library(session, project.id) == []
    assert (await learn(session, project.id, "new", "return 2")).state is SkillState.ACTIVE
    assert (await learn(session, project.id, "banned", "return 2")).state is SkillState.RETIRED


async def test_the_library_is_kept_on_request(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await learn(session, project.id, "new")
    assert await activate(session, first, keep="keep") == {}
    assert await library(session, project.id) == [("new", 1)]


async def test_a_rollback_restores_the_skills_at_the_releases_end_not_at_its_start(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    second = await releases.propose(session, project.id, "f00d")
    await activate(session, second)
    await learn(session, project.id, "grown")
    await activate(session, first)
    assert await library(session, project.id) == []
    await activate(session, second)
    assert await library(session, project.id) == [("grown", 1)]


async def test_activating_the_active_release_removes_no_skill(session: AsyncSession) -> None:
    project = await project_row(session)
    release = await releases.propose(session, project.id, "f00d")
    await activate(session, release)
    await learn(session, project.id, "new")
    assert await activate(session, release) == {}
    assert await library(session, project.id) == [("new", 1)]


async def test_a_rollback_does_not_touch_skills_of_another_project(session: AsyncSession) -> None:
    project, other = await project_row(session), await project_row(session)
    first = await releases.active(session, project.id)
    await learn(session, other.id, "theirs")
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await learn(session, project.id, "mine")
    await activate(session, first)
    assert (await library(session, project.id), await library(session, other.id)) == ([], [("theirs", 1)])


async def test_a_rollback_gives_skills_the_states_of_that_time(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    new = skills.NewSkill(
        name="tried", signature="", source="one", apis=["mail.list"], instruction="", principal="a"
    )
    tried = await admit(session, project.id, new)
    held = await admit(
        session, project.id, msgspec.structs.replace(new, source="two", apis=["mail.list", "mail.send"])
    )
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await moves.retire(session, tried.id)
    await session.refresh(held)
    later = await admit(session, project.id, msgspec.structs.replace(new, name="later", taint="an answer"))
    changed = (await activate(session, first))["skills"]
    assert [each["name"] for each in changed["restored"]] == ["tried"]
    assert [each["name"] for each in changed["withdrawn"]] == ["later"]
    for row in (tried, held, later):
        await session.refresh(row)
    assert [row.state for row in (tried, held, later)] == [
        SkillState.PROBATION,
        SkillState.RETIRED,
        SkillState.SUPERSEDED,
    ]


async def test_a_rollback_offers_no_skill_that_went_beyond_its_manifest(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    bad = await learn(session, project.id, "bad")
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await moves.quarantine(session, bad.id, "it attempted mail.purge", 1)
    await activate(session, first)
    await session.refresh(bad)
    assert (bad.state, bad.held) == (SkillState.QUARANTINED, True)


async def test_a_rollback_restores_the_version_that_was_active_and_the_one_on_probation(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    one = await learn(session, project.id, "greet", "return 1")
    new = skills.NewSkill(
        name="greet", signature="", source="two", apis=one.apis, instruction="", manifest={"operations": {}}
    )
    two = await admit(session, project.id, new)
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await moves.approve(session, two.id, "key me")
    await session.refresh(one)
    assert (one.state, two.state) == (SkillState.SUPERSEDED, SkillState.ACTIVE)
    await activate(session, first)
    for row in (one, two):
        await session.refresh(row)
    assert (one.state, two.state) == (SkillState.ACTIVE, SkillState.PROBATION)


async def test_a_rollback_activates_no_skill_that_was_taken_back_since(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    maker = await task_row(session, project.id)
    skill = await skills.add(session, project.id, new_skill(task_id=maker.id))
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await admission.scored(session, maker.id, 0.1)
    await session.refresh(skill)
    assert skill.state is SkillState.PROBATION
    await moves.retire(session, skill.id)
    await activate(session, first)
    await session.refresh(skill)
    assert skill.state is SkillState.PROBATION
