"""What a canary's tasks write concerns nobody else while its trial lasts."""

from uuid import UUID

import pytest

from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, SkillState
from app.projects import store as projects
from app.releases import store as releases
from app.releases import trials_store
from app.skills import admission, moves
from app.skills import store as skills
from app.skills.library import Library
from app.skills.provenance import SkillOrigin
from tests.support.archiving_skills import QUERY, draft, project
from tests.support.rows import project_row
from tests.support.skill_project import SkillProject
from tests.support.written_functions import ARCHIVE

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState
OTHER = ARCHIVE.replace("page = 1", "page = 0")


async def begun(sessions: Sessions, project_id: UUID) -> tables.Release:
    async with sessions.begin() as session:
        return await trials_store.begin(session, (await releases.propose(session, project_id, "f00d")).id, 10)


async def versions_found(library: Library, here: UUID, release: UUID | None, who: str = "ann") -> list[int]:
    return [each.version for each in await library.find(here, QUERY, principal=who, release=release)]


async def test_it_is_offered_to_its_own_tasks_and_to_the_others_once_it_is_promoted(sessions: Sessions) -> None:
    here = await project(sessions)
    canary = await begun(sessions, here)
    writer, reader = Library(sessions, clock=lambda: 0.0), Library(sessions)
    await writer.save(here, [draft()], SkillOrigin(principal="ann"))
    await writer.save(here, [draft(OTHER)], SkillOrigin(principal="ann", release_id=canary.id))
    for library in (writer, reader):
        assert await versions_found(library, here, canary.id) == [2]
        assert await versions_found(library, here, canary.id, "bob") == [1]
        for release in (None, UUID(int=1)):
            assert await versions_found(library, here, release) == [1]
    async with sessions.begin() as session:
        await releases.activate(session, canary.id)
    await reader.refresh(here)
    assert await versions_found(reader, here, None) == [2]


async def test_what_others_are_offered_is_not_replaced_and_comes_to_the_canary_too(sessions: Sessions) -> None:
    here = await project(sessions)
    canary = await begun(sessions, here)
    library = Library(sessions)
    await library.save(here, [draft(OTHER)], SkillOrigin(release_id=canary.id))
    await library.save(here, [draft()])
    async with sessions() as session:
        states = [each.state for each in await skills.versions(session, here, "archive_mails_by_person")]
    assert states == [PROBATION, PROBATION]
    assert await versions_found(library, here, None, "") == [2]
    assert await versions_found(library, here, canary.id, "") == [2], "the newer one"


@pytest.mark.parametrize("state", [ReleaseState.CANDIDATE, ReleaseState.REJECTED])
async def test_after_the_trial_the_skills_follow_the_release(sessions: Sessions, state: ReleaseState) -> None:
    here = await project(sessions)
    canary = await begun(sessions, here)
    library = Library(sessions)
    await library.save(here, [draft()], SkillOrigin(release_id=canary.id))
    assert await versions_found(library, here, None, "") == []
    async with sessions.begin() as session:
        await trials_store.end(session, canary.id, state, {})
        if state is ReleaseState.REJECTED:
            await moves.withdraw(session, canary.id, here, "it was rejected")
    await library.refresh(here)
    offered = [1] if state is ReleaseState.CANDIDATE else []
    assert await versions_found(library, here, None, "") == offered


async def test_a_project_that_offers_every_skill_at_once_waits_for_the_end_of_the_trial(
    sessions: Sessions,
) -> None:
    here = await project(sessions)
    canary = await begun(sessions, here)
    async with sessions.begin() as session:
        await projects.change_settings(session, here, {"skills": "open"})
    library = Library(sessions)
    await library.save(here, [draft()], SkillOrigin(principal="ann"))
    await library.save(here, [draft(OTHER)], SkillOrigin(principal="ann", release_id=canary.id))
    assert await versions_found(library, here, None) == [1]
    assert await versions_found(library, here, canary.id) == [2]
    async with sessions.begin() as session:
        await releases.activate(session, canary.id)
        states = [each.state for each in await skills.versions(session, here, "archive_mails_by_person")]
    assert states == [ACTIVE, SUPERSEDED]
    await library.refresh(here)
    assert await versions_found(library, here, None, "bob") == [2]


async def test_evidence_activates_it_only_after_the_trial(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        canary = await trials_store.begin(
            session, (await releases.propose(session, (await project_row(session)).id, "f00d")).id, 10
        )
        here = SkillProject(session, canary.project_id)
        skill = await here.write(principal="", score=1.0, release_id=canary.id)
        for _ in range(4):
            await here.use(skill, "")
        assert skill.state is PROBATION
        _, found = await admission.judge(session, skill)
        assert found.missing == ("the end of the trial of release 2",)
        await releases.activate(session, canary.id)
        await here.use(skill, "")
        assert skill.state is ACTIVE
