"""The library of a project follows its table, on a real PostgreSQL."""

import asyncio
from contextlib import suppress
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import event

from app.base.errors import ConflictError, NotFoundError
from app.db import tables
from app.db.database import Sessions
from app.skills import moves
from app.skills import store as skills
from app.skills.admission import serving
from app.skills.library import Library
from app.skills.provenance import SkillOrigin
from tests.support.archiving_skills import QUERY, draft, named, project
from tests.support.written_functions import ARCHIVE

NAMES = ("skill_0", "skill_1", "skill_2", "skill_3")


async def test_a_saved_skill_is_found_at_once_and_carries_its_provenance(sessions: Sessions) -> None:
    here = await project(sessions)
    library = Library(sessions, clock=lambda: 0.0)
    assert await library.find(here, QUERY, "s") == []
    [saved] = await library.save(here, [draft()], SkillOrigin(scenario="s"))
    [found] = await library.find(here, QUERY, "s")
    assert found == msgspec.structs.replace(saved, ranks={"query_ngram": 1, "scenario": 1})
    async with sessions() as session:
        row = await skills.get(session, found.skill_id)
    assert (row.instruction, row.scenario, row.slots) == ("archive every one of my mails from iris", "s", ["iris"])
    assert row.apis == ["mail.fetch_mails", "mail.file_mail", "mail.sign_in", "supervisor.show_passwords"]


async def test_a_skill_is_invisible_to_other_projects(sessions: Sessions) -> None:
    here, there = await project(sessions), await project(sessions, "other")
    library = Library(sessions)
    await library.save(here, [draft()], SkillOrigin(scenario="s"))
    assert await library.find(there, QUERY, "s") == []


async def test_a_new_version_replaces_the_old_one(sessions: Sessions) -> None:
    here = await project(sessions)
    library = Library(sessions)
    await library.save(here, [draft()])
    await library.save(here, [draft(ARCHIVE.replace("page = 1", "page = 0"))])
    assert [offer.version for offer in await library.find(here, QUERY)] == [2]


async def test_the_same_source_again_is_no_new_version(sessions: Sessions) -> None:
    here = await project(sessions)
    library = Library(sessions)
    async with sessions.begin() as session:
        tasks = [tables.Task(project_id=here, instruction=QUERY) for _ in range(2)]
        session.add_all(tasks)
    assert [offer.version for offer in await library.save(here, [draft()], SkillOrigin(task_id=tasks[0].id))] == [
        1
    ]
    assert await library.save(here, [draft()], SkillOrigin(task_id=tasks[1].id)) == []
    assert [offer.version for offer in await library.find(here, QUERY)] == [1]


async def test_skills_of_a_deleted_project_cannot_be_saved(sessions: Sessions) -> None:
    with pytest.raises(NotFoundError):
        await Library(sessions).save(UUID(int=5), [draft()])


async def test_other_processes_follow_saves_retirements_and_restorations(committed: Sessions) -> None:
    here = await project(committed)
    ours, theirs = Library(committed), Library(committed)
    [saved] = await ours.save(here, [draft()])
    assert [offer.skill_id for offer in await theirs.find(here, QUERY)] == [saved.skill_id]
    for change, left in (
        (moves.retire, []),
        (moves.restore, [saved.skill_id]),
        (moves.delete, []),
    ):
        async with committed.begin() as session:
            await change(session, saved.skill_id)
        await theirs.refresh(here)
        assert [offer.skill_id for offer in await theirs.find(here, QUERY)] == left


async def test_a_search_is_at_most_a_tenth_of_a_second_behind(committed: Sessions) -> None:
    here = await project(committed)
    now = 0.0
    ours, theirs = Library(committed), Library(committed, clock=lambda: now)
    assert await theirs.find(here, QUERY) == []
    await ours.save(here, [draft()])
    now = 0.09
    assert await theirs.find(here, QUERY) == []
    now = 0.11
    assert len(await theirs.find(here, QUERY)) == 1


async def test_concurrent_searches_share_one_read_of_the_changes(committed: Sessions) -> None:
    here = await project(committed)
    library = Library(committed)
    await library.save(here, [draft()])
    assert len(await library.find(here, QUERY)) == 1
    await asyncio.sleep(0.11)
    looks, reads = [], []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "skill_rev" in statement:
            looks.append(statement)
        elif "FROM skills" in statement:
            reads.append(statement)

    async with committed() as session:
        engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", note)
    found = await asyncio.gather(*(library.find(here, QUERY) for _ in range(20)))
    event.remove(engine, "before_cursor_execute", note)
    assert [len(offers) for offers in found] == [1] * 20
    assert 0 < len(looks) < 20
    assert reads == []  # nothing came after the one skill


async def test_every_index_converges_while_several_processes_write(committed: Sessions) -> None:
    here = await project(committed)
    writers = [Library(committed) for _ in range(3)]
    watcher = Library(committed)
    await asyncio.gather(
        _watch(watcher, here), *(_write(committed, library, here, part) for part, library in enumerate(writers))
    )
    offered = set()
    async with committed() as session:
        for name in NAMES:
            served = serving(await moves.live_versions(session, here, name), "")
            offered |= {served.id} if served else set()
    assert offered
    for library in (watcher, *writers):
        await library.refresh(here)
        assert {offer.skill_id for offer in await library.find(here, QUERY, limit=50)} == offered


async def _watch(library: Library, here: UUID) -> None:
    for _ in range(60):
        await library.refresh(here)
        await asyncio.sleep(0.01)


async def _write(sessions: Sessions, library: Library, here: UUID, part: int) -> None:
    """Write versions of the same names as the other writers, and sometimes retire one; never the first name."""
    for number in range(8):
        fresh = named(NAMES[(part + number) % len(NAMES)])
        await library.save(here, [msgspec.structs.replace(fresh, source=f"{fresh.source}  # {part}.{number}")])
        if number % 3 == part:
            for found in await library.find(here, QUERY, limit=2):
                if found.name == NAMES[0]:
                    continue
                with suppress(ConflictError):  # another writer was first
                    async with sessions.begin() as session:
                        await moves.retire(session, found.skill_id)
