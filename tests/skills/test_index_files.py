"""The index files of a host: written by another process, followed by all, never wrong."""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text

from app.db.database import Sessions
from app.skills import index_files, moves
from app.skills.index_files import BusyIndexError, DamagedIndexError, IndexFiles, IndexUpkeep, write_files
from app.skills.library import Library
from app.skills.search import fused
from tests.support.archiving_skills import QUERY, named, project
from tests.support.embedders import WordEmbedder
from tests.support.small_filesystem import fill, small_filesystem


async def save(sessions: Sessions, here: UUID, *names: str) -> None:
    await Library(sessions, WordEmbedder()).save(here, [named(name) for name in names])


def library(sessions: Sessions, files: IndexFiles | None, clock: float = 0.0) -> Library:
    return Library(sessions, WordEmbedder(), retrieval=fused, files=files, clock=lambda: clock, limit=50)


async def names(library: Library, here: UUID) -> list[str]:
    await library.refresh(here)
    return [offer.name for offer in await library.find(here, QUERY)]


async def write(database_url: str, files: IndexFiles, here: UUID) -> str:
    await asyncio.to_thread(write_files, files, database_url, here)
    name = files.current(here)
    assert name is not None
    return name


async def test_files_are_written_by_a_process_when_enough_has_changed_and_mapped_by_all(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, there = await project(committed), await project(committed, "other")
    files = IndexFiles(tmp_path)
    upkeep = IndexUpkeep(committed, files, database_url, changes=3)
    await save(committed, there, "theirs")
    await save(committed, here, "a", "b")
    await upkeep.write_due()
    assert (files.current(here), files.current(there)) == (None, None)
    await save(committed, here, "c")
    await upkeep.write_due()
    manifest = files.manifest(here)
    assert manifest is not None
    assert (manifest.count, manifest.embedder) == (3, "words")
    assert files.current(there) is None

    everything = await names(library(committed, None), here)
    assert sorted(everything) == ["a", "b", "c"]
    for process in (library(committed, IndexFiles(tmp_path)), library(committed, IndexFiles(tmp_path))):
        assert await names(process, here) == everything
        assert process.in_memory == 0
        assert await names(process, there) == ["theirs"]


async def test_what_changes_after_the_files_were_written_is_found_as_in_memory(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, files = await project(committed), IndexFiles(tmp_path)
    await save(committed, here, "a", "b", "c")
    await write(database_url, files, here)
    mapped, unmapped = library(committed, files), library(committed, None)
    before = {offer.name: offer for offer in await mapped.find(here, QUERY)}
    assert set(before) == {"a", "b", "c"}
    assert all(offer.source.startswith("def ") or "import" in offer.source for offer in before.values())
    async with committed.begin() as session:
        await moves.retire(session, before["a"].skill_id)
    async with committed.begin() as session:
        await moves.quarantine(session, before["b"].skill_id, "it called too much", 1)
    assert await names(mapped, here) == await names(unmapped, here) == ["c"]
    await save(committed, here, "d")
    newer = named("c")
    await Library(committed).save(here, [msgspec.structs.replace(newer, source=f"{newer.source}  # 2")])
    async with committed.begin() as session:
        await moves.restore(session, before["a"].skill_id)
    found = await names(mapped, here)
    assert found == await names(unmapped, here)
    assert sorted(found) == ["a", "c", "d"]
    assert {offer.name: offer.version for offer in await mapped.find(here, QUERY)}["c"] == 2


async def test_newer_files_are_opened_in_the_background_while_searches_go_on(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, files = await project(committed), IndexFiles(tmp_path)
    await save(committed, here, "a", "b")
    process = library(committed, files)
    assert sorted(await names(process, here)) == ["a", "b"]
    assert process.in_memory == 2
    first = await write(database_url, files, here)
    await _until_mapped(process, here)
    await save(committed, here, "c")
    assert sorted(await names(process, here)) == ["a", "b", "c"]
    assert process.in_memory == 1
    assert await write(database_url, files, here) != first
    assert sorted(path.name for path in (tmp_path / str(here)).iterdir() if path.is_dir()) == sorted(
        ["current", str(files.current(here))]
    ), "the files before are deleted"
    assert sorted(await names(process, here)) == ["a", "b", "c"], "they stay mapped"
    await _until_mapped(process, here)


async def _until_mapped(process: Library, here: UUID) -> None:
    while process.in_memory:
        await process.find(here, QUERY)
        await process.refresh(here)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "manifest", "restored"])
async def test_files_that_are_damaged_or_of_another_database_are_discarded_and_written_again(
    damage: str, committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, files = await project(committed), IndexFiles(tmp_path)
    await save(committed, here, "a", "b")
    name = await write(database_url, files, here)
    file = tmp_path / str(here) / name / ("manifest.json" if damage == "manifest" else "gram_hits.npy")
    content = file.read_bytes()
    if damage == "restored":  # a backup from before the last change
        async with committed.begin() as session:
            await session.execute(text("UPDATE projects SET skill_rev = skill_rev - 1"))
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-2] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        if damage == "manifest":
            file.write_bytes(content[: len(content) // 2])
    if damage != "restored":
        with pytest.raises(DamagedIndexError):
            IndexFiles(tmp_path).open(here, name)
    process = library(committed, IndexFiles(tmp_path))
    assert sorted(await names(process, here)) == ["a", "b"]
    assert process.in_memory == 2
    assert files.current(here) is None
    await IndexUpkeep(committed, files, database_url, changes=2).write_due()
    assert files.current(here) not in (None, name)


async def test_of_a_large_project_without_files_the_newest_skills_are_found(
    committed: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await project(committed)
    for name in "abcd":
        await save(committed, here, name)
    monkeypatch.setattr(index_files, "_UNMAPPED", 2)
    assert sorted(await names(library(committed, IndexFiles(tmp_path)), here)) == ["c", "d"]


async def test_two_processes_never_write_the_same_files(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, files = await project(committed), IndexFiles(tmp_path)
    await save(committed, here, "a", "b")
    with files.writing(here), pytest.raises(BusyIndexError), IndexFiles(tmp_path).writing(here):
        pass
    upkeeps = [IndexUpkeep(committed, IndexFiles(tmp_path), database_url, changes=2) for _ in range(3)]
    await asyncio.gather(*(each.write_due() for each in upkeeps))
    assert files.manifest(here) is not None
    assert await names(library(committed, files), here)


async def test_on_a_full_disk_the_files_in_use_stay_and_nothing_is_left_behind(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here = await project(committed)
    await save(committed, here, "a", "b")
    with small_filesystem(tmp_path / "small", 4) as directory:
        files = IndexFiles(directory)
        name = await write(database_url, files, here)
        filler = fill(directory)
        await save(committed, here, "c", "d")
        upkeep = IndexUpkeep(committed, files, database_url, changes=2)
        assert (await upkeep.write_due() or 0) > 10, "it waits longer"
        assert files.current(here) == name
        assert sorted(await names(library(committed, files), here)) == ["a", "b", "c", "d"]
        directories = [
            path for path in (directory / str(here)).iterdir() if path.is_dir() and not path.is_symlink()
        ]
        assert [path.name for path in directories] == [name]
        filler.unlink()
        await upkeep.write_due()
        assert files.current(here) != name


async def test_the_files_of_deleted_projects_are_deleted(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here, files = await project(committed), IndexFiles(tmp_path)
    await save(committed, here, "a")
    await write(database_url, files, here)
    async with committed.begin() as session:
        await session.execute(text("DELETE FROM projects"))
    await IndexUpkeep(committed, files, database_url).write_due()
    assert not (tmp_path / str(here)).exists()
