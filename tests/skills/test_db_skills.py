"""Skills in the database: versions, states, and the revisions that caches follow."""

import asyncio
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.db import tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.projects import store as projects
from app.skills import moves
from app.skills import store as skills
from app.skills.store import SkillFilter
from tests.support.rows import new_skill, project_row, task_row
from tests.support.skill_project import changed_since

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState


async def _states(session: AsyncSession, project_id: UUID, name: str = "greet") -> list[tuple[int, SkillState]]:
    return [(each.version, each.state) for each in await skills.versions(session, project_id, name)]


async def test_a_new_source_is_the_next_version_and_supersedes_the_last(session: AsyncSession) -> None:
    project = await project_row(session)
    await skills.add(session, project.id, new_skill(source="one"))
    await skills.add(session, project.id, new_skill(source="two"))
    await skills.add(session, project.id, new_skill(name="other"))
    assert await _states(session, project.id) == [(2, ACTIVE), (1, SUPERSEDED)]
    assert await _states(session, project.id, "other") == [(1, ACTIVE)]


async def test_the_same_source_again_is_the_same_skill(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await skills.add(session, project.id, new_skill())
    assert (await skills.add(session, project.id, new_skill())).id == first.id
    assert await _states(session, project.id) == [(1, ACTIVE)]


async def test_projects_number_their_skills_independently(session: AsyncSession) -> None:
    one, other = await project_row(session), await project_row(session)
    first = await skills.add(session, one.id, new_skill())
    second = await skills.add(session, other.id, new_skill())
    assert [(each.version, each.rev, each.state) for each in (first, second)] == [(1, 1, ACTIVE)] * 2
    with pytest.raises(NotFoundError):
        await skills.get(session, first.id, other.id)


async def test_a_skill_for_an_unknown_project_is_refused(session: AsyncSession) -> None:
    with pytest.raises(NotFoundError, match="no project"):
        await skills.add(session, uuid4(), new_skill())


async def test_changes_are_read_in_order_with_the_versions_they_superseded(session: AsyncSession) -> None:
    project = await project_row(session)
    await skills.add(session, project.id, new_skill(source="one"))
    second = await skills.add(session, project.id, new_skill(source="two"))
    seen = second.rev
    assert [(each.version, each.state) for each in await changed_since(session, project.id, seen - 1)] == [
        (1, SUPERSEDED),
        (2, ACTIVE),
    ]
    assert await changed_since(session, project.id, seen) == []
    await moves.retire(session, second.id)
    assert [each.state for each in await changed_since(session, project.id, seen)] == [RETIRED]


async def test_concurrent_writers_leave_one_active_version_and_no_gap(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)

    async def add(source: str) -> None:
        async with committed.begin() as session:
            await skills.add(session, project.id, new_skill(source=source))

    await asyncio.gather(*(add(f"source {number}") for number in range(8)))
    async with committed() as session:
        states = await _states(session, project.id)
        assert [version for version, _ in states] == [8, 7, 6, 5, 4, 3, 2, 1]
        assert [state for _, state in states] == [ACTIVE] + [SUPERSEDED] * 7
        assert (await projects.by_id(session, project.id)).skill_rev == 8


async def test_a_reader_that_follows_the_counter_misses_no_change(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
    cache: dict[UUID, SkillState] = {}
    writing = True

    async def write(writer: int) -> None:
        for number in range(6):
            async with committed.begin() as session:
                await skills.add(session, project.id, new_skill(source=f"{writer} {number}"))
                await asyncio.sleep(0.002 * writer)  # so that commits could overtake each other

    async def follow() -> None:
        seen = 0
        while True:
            last = not writing
            async with committed() as session:
                for each in await changed_since(session, project.id, seen):
                    cache[each.id], seen = each.state, each.rev
            if last:
                return

    following = asyncio.create_task(follow())
    await asyncio.gather(*(write(writer) for writer in range(4)))
    writing = False
    await following
    async with committed() as session:
        assert cache == {each.id: each.state for each in await skills.versions(session, project.id, "greet")}


async def test_a_retired_skill_can_be_restored(session: AsyncSession) -> None:
    project = await project_row(session)
    skill = await skills.add(session, project.id, new_skill())
    assert (await moves.retire(session, skill.id)).state is RETIRED
    restored = await moves.restore(session, skill.id)
    assert (restored.state, restored.rev) == (ACTIVE, 3)


async def test_a_retired_name_stays_retired_when_it_is_written_again_until_it_is_restored(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    first = await skills.add(session, project.id, new_skill(source="one"))
    await moves.retire(session, first.id)
    assert (await skills.add(session, project.id, new_skill(source="one"))).id == first.id
    again = await skills.add(session, project.id, new_skill(source="two"))
    assert await _states(session, project.id) == [(2, RETIRED), (1, RETIRED)]
    await moves.restore(session, again.id)
    await skills.add(session, project.id, new_skill(source="three"))
    assert await _states(session, project.id) == [(3, ACTIVE), (2, SUPERSEDED), (1, RETIRED)]


async def test_restoring_an_old_version_supersedes_the_active_one(session: AsyncSession) -> None:
    project = await project_row(session)
    old = await skills.add(session, project.id, new_skill(source="one"))
    await skills.add(session, project.id, new_skill(source="two"))
    await moves.restore(session, old.id)
    assert await _states(session, project.id) == [(2, SUPERSEDED), (1, ACTIVE)]


async def test_a_deleted_skill_loses_its_source_and_stays_deleted(session: AsyncSession) -> None:
    project = await project_row(session)
    skill = await skills.add(session, project.id, new_skill())
    await skills.set_vectors(session, skill.id, "minilm", b"q", b"s")
    deleted = await moves.delete(session, skill.id)
    assert (deleted.state, deleted.source, deleted.embedder, deleted.query_vector) == (DELETED, "", None, None)
    assert (deleted.instruction, deleted.slots) == ("", [])
    for move in (moves.restore, moves.retire, moves.delete):
        with pytest.raises(ConflictError, match="greet version 1 is deleted"):
            await move(session, skill.id)
    assert (await skills.add(session, project.id, new_skill())).version == 2


async def test_a_superseded_skill_cannot_be_retired(session: AsyncSession) -> None:
    project = await project_row(session)
    old = await skills.add(session, project.id, new_skill(source="one"))
    await skills.add(session, project.id, new_skill(source="two"))
    with pytest.raises(ConflictError, match="is superseded: it cannot be retired"):
        await moves.retire(session, old.id)


async def test_vectors_are_added_later_and_seen_by_caches(session: AsyncSession) -> None:
    project = await project_row(session)
    bare = await skills.add(session, project.id, new_skill())
    gone = await skills.add(session, project.id, new_skill(name="gone"))
    await moves.retire(session, gone.id)
    seen = (await projects.by_id(session, project.id)).skill_rev
    assert [each.id for each in await skills.without_vectors(session, "minilm")] == [bare.id]
    await skills.set_vectors(session, bare.id, "minilm", b"query", b"source")
    await skills.set_vectors(session, gone.id, "minilm", b"query", b"source")
    changed = await changed_since(session, project.id, seen)
    assert [(each.id, each.query_vector, each.source_vector) for each in changed] == [
        (bare.id, b"query", b"source")
    ]
    assert await skills.without_vectors(session, "minilm") == []
    assert [each.id for each in await skills.without_vectors(session, "another")] == [bare.id]


async def test_a_listing_contains_only_what_matches_its_filter(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id)
    mail = await skills.add(session, project.id, new_skill(name="mail", task_id=task.id))
    notes = await skills.add(session, project.id, new_skill(name="notes"))
    notes.apis, notes.scenario = ["notes.list_mails", "mailing.send"], "tidy"
    await session.flush()

    async def listed(**only: object) -> list[UUID]:
        page = await skills.page(session, SkillFilter(project_id=project.id, **only))  # type: ignore[arg-type]
        return [each.id for each in page.items]

    assert await listed() == [notes.id, mail.id]
    assert await listed(name="mail") == [mail.id]
    assert await listed(scenario="tidy") == [notes.id]
    assert await listed(api="mail") == [mail.id]
    assert await listed(api="notes.list_mails") == [notes.id]
    assert await listed(api="list_mails") == []
    assert await listed(state=RETIRED) == []
    assert [each.id for each in await skills.made_by(session, task.id)] == [mail.id]
    first = await skills.page(session, SkillFilter(project_id=project.id), limit=1)
    second = await skills.page(session, SkillFilter(project_id=project.id), limit=1, cursor=first.cursor)
    assert [each.id for each in (*first.items, *second.items)] == [notes.id, mail.id]


async def test_a_skill_outlives_the_task_that_wrote_it(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id)
    skill = await skills.add(session, project.id, new_skill(task_id=task.id))
    await session.delete(await session.get_one(tables.Task, task.id))
    await session.flush()
    assert (await skills.get(session, skill.id)).task_id is None
